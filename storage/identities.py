"""Tenants and API keys."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import api_keys, tenants


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as stored: what its holder sends can be checked against `digest`, not read from it."""

    id: str
    tenant_id: str
    digest: bytes


async def ensure_tenant(connection: AsyncConnection, tenant_id: str, name: str) -> str:
    """Return the id of the tenant of that name, creating it under `tenant_id` when missing."""
    await connection.execute(
        insert(tenants).values(id=tenant_id, name=name).on_conflict_do_nothing(index_elements=["name"])
    )
    found = await connection.execute(sa.select(tenants.c.id).where(tenants.c.name == name))
    return str(found.scalar_one())


async def insert_key(
    connection: AsyncConnection,
    *,
    key_id: str,
    tenant_id: str,
    name: str,
    lookup: str,
    digest: bytes,
    expires_at: datetime | None = None,
) -> None:
    """Store a key. Raises: IntegrityError when the lookup prefix is taken."""
    await connection.execute(
        api_keys.insert().values(
            id=key_id, tenant_id=tenant_id, name=name, lookup=lookup, digest=digest, expires_at=expires_at
        )
    )


async def find_key(connection: AsyncConnection, lookup: str) -> StoredKey | None:
    """Find a key in force (neither revoked nor expired) by its lookup prefix."""
    row = (
        await connection.execute(
            sa.select(api_keys.c.id, api_keys.c.tenant_id, api_keys.c.digest).where(
                api_keys.c.lookup == lookup,
                api_keys.c.revoked_at.is_(None),
                sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > sa.func.now()),
            )
        )
    ).one_or_none()
    return StoredKey(row.id, row.tenant_id, row.digest) if row else None


async def revoke_key(connection: AsyncConnection, lookup: str) -> bool:
    """Revoke the key of that lookup prefix; False when there is none in force."""
    result = await connection.execute(
        sa.update(api_keys)
        .where(api_keys.c.lookup == lookup, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=sa.func.now())
    )
    return bool(result.rowcount)
