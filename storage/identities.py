"""API keys. What a holder sends can be checked against what is stored, not read from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.scopes import Scope
from storage.paging import Page, read_page
from storage.tables import api_keys, tenants


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key in force, as authentication needs it."""

    id: str
    tenant_id: str
    digest: bytes
    scopes: frozenset[Scope]
    name: str
    tenant_disabled: bool
    tenant_class: str
    first_id: str  # as of `ApiKey`


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as administrators may see it: no secret, no digest."""

    id: str
    tenant_id: str
    name: str
    lookup: str  # its first characters
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None  # to the minute
    replaced_by: str | None  # the key that its rotation made
    first_id: str  # the key whose rotations led to this one, or itself: limits, budgets, tasks, charges are under it


_COLUMNS = [column for column in api_keys.c if column.name != "digest"]
_IN_FORCE = sa.and_(
    api_keys.c.revoked_at.is_(None),
    sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > sa.func.now()),
)


def _of(row: Any) -> ApiKey:
    return ApiKey(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        lookup=row.lookup,
        scopes=tuple(scope for scope in Scope if scope in row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        replaced_by=row.replaced_by,
        first_id=row.first_id or row.id,
    )


async def insert_key(
    connection: AsyncConnection,
    *,
    key_id: str,
    tenant_id: str,
    name: str,
    lookup: str,
    digest: bytes,
    scopes: Iterable[Scope],
    expires_at: datetime | None = None,
    first_id: str | None = None,
) -> ApiKey:
    """Store a key; `first_id`: of one that it takes the place of.

    Raises: IntegrityError when the lookup prefix is taken.
    """
    query = api_keys.insert().values(
        id=key_id,
        tenant_id=tenant_id,
        name=name,
        lookup=lookup,
        digest=digest,
        scopes=sorted(scopes),
        expires_at=expires_at,
        first_id=first_id,
    )
    return _of((await connection.execute(query.returning(*_COLUMNS))).one())


async def find_key(connection: AsyncConnection, lookup: str) -> StoredKey | None:
    """Find a key in force (neither revoked nor expired) by its lookup prefix."""
    query = (
        sa.select(
            api_keys.c.id,
            api_keys.c.tenant_id,
            api_keys.c.digest,
            api_keys.c.scopes,
            api_keys.c.name,
            tenants.c.disabled_at.is_not(None).label("tenant_disabled"),
            tenants.c["class"].label("tenant_class"),
            api_keys.c.first_id,
        )
        .join(tenants, tenants.c.id == api_keys.c.tenant_id)
        .where(api_keys.c.lookup == lookup, _IN_FORCE)
    )
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    scopes = frozenset(map(Scope, row.scopes))
    return StoredKey(
        id=row.id,
        tenant_id=row.tenant_id,
        digest=row.digest,
        scopes=scopes,
        name=row.name,
        tenant_disabled=row.tenant_disabled,
        tenant_class=row.tenant_class,
        first_id=row.first_id or row.id,
    )


async def get_key(connection: AsyncConnection, id_or_lookup: str, *, lock: bool = False) -> ApiKey | None:
    """Read a key by its id or lookup prefix, whatever became of it; `lock` until the transaction ends."""
    query = sa.select(*_COLUMNS).where(
        sa.or_(api_keys.c.id == id_or_lookup, api_keys.c.lookup == id_or_lookup)
    )
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    return _of(row) if row else None


async def find_key_named(connection: AsyncConnection, tenant_id: str, name: str) -> ApiKey | None:
    """Find the newest key of that name in force and not rotated."""
    query = sa.select(*_COLUMNS).where(
        api_keys.c.tenant_id == tenant_id,
        api_keys.c.name == name,
        api_keys.c.replaced_by.is_(None),
        _IN_FORCE,
    )
    row = (await connection.execute(query.order_by(api_keys.c.id.desc()).limit(1))).one_or_none()
    return _of(row) if row else None


async def update_key(connection: AsyncConnection, key_id: str, values: Mapping[str, Any]) -> ApiKey:
    """Change columns of a key that exists."""
    query = sa.update(api_keys).where(api_keys.c.id == key_id).values(dict(values)).returning(*_COLUMNS)
    return _of((await connection.execute(query)).one())


async def revoke_key(connection: AsyncConnection, key_id: str) -> ApiKey:
    """Revoke a key that exists; one revoked before keeps its time."""
    return await update_key(
        connection, key_id, {"revoked_at": sa.func.coalesce(api_keys.c.revoked_at, sa.func.now())}
    )


async def end_by(connection: AsyncConnection, key_id: str, *, within_s: float, replaced_by: str) -> ApiKey:
    """Let a key end after a time, or when it would have anyway, another one taking its place."""
    ends = sa.func.now() + sa.func.make_interval(0, 0, 0, 0, 0, 0, within_s)
    return await update_key(
        connection,
        key_id,
        {"expires_at": sa.func.least(api_keys.c.expires_at, ends), "replaced_by": replaced_by},
    )


async def list_keys(
    connection: AsyncConnection, page: Page, *, tenant_id: str | None, name: str | None, in_force: bool
) -> tuple[list[ApiKey], bool]:
    """List keys, of one tenant or of all, and whether there are more."""
    query = sa.select(*_COLUMNS)
    if tenant_id is not None:
        query = query.where(api_keys.c.tenant_id == tenant_id)
    if name is not None:
        query = query.where(api_keys.c.name == name)
    if in_force:
        query = query.where(_IN_FORCE)
    rows, has_more = await read_page(connection, query, api_keys.c.id, page)
    return [_of(row) for row in rows], has_more


_USED = sa.text("""
UPDATE api_keys k SET last_used_at = to_timestamp(u.at)
FROM unnest(CAST(:ids AS text[]), CAST(:at AS float8[])) AS u(id, at)
WHERE k.id = u.id AND (k.last_used_at IS NULL OR k.last_used_at < to_timestamp(u.at) - interval '1 minute')
""").bindparams(sa.bindparam("ids", type_=sa.ARRAY(sa.Text)), sa.bindparam("at", type_=sa.ARRAY(sa.Float)))


async def note_uses(connection: AsyncConnection, used: Mapping[str, float]) -> int:
    """Note when keys (by id) were last used, unless another process did so less than a minute before.

    Return how many were written.
    """
    return (await connection.execute(_USED, {"ids": list(used), "at": list(used.values())})).rowcount
