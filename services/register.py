"""Set up what must exist before the first request: tenant, key, models, grants."""

import secrets
import time

from sqlalchemy.ext.asyncio import AsyncEngine

from core.ids import make_id
from core.keys import make_key
from core.lanes import LengthBounds
from core.pricing import Tariff
from storage import identities, registry
from storage.autocommit import autocommit


def new_id(prefix: str) -> str:
    """Make an id of now."""
    return make_id(prefix, time.time_ns() // 1_000_000, secrets.token_bytes(10))


async def create_key(database: AsyncEngine, *, tenant: str, name: str, pepper: bytes) -> str:
    """Create a key for a tenant (created when missing); return its text, which is not stored."""
    key = make_key(secrets.token_bytes(44), pepper)
    async with database.begin() as connection:
        tenant_id = await identities.ensure_tenant(connection, new_id("tenant"), tenant)
        await identities.insert_key(
            connection,
            key_id=new_id("key"),
            tenant_id=tenant_id,
            name=name,
            lookup=key.lookup,
            digest=key.digest,
        )
    return key.text


async def revoke_key(database: AsyncEngine, lookup: str) -> bool:
    """Revoke a key by its lookup prefix; API processes refuse it within a second. False: none in force."""
    async with autocommit(database) as connection:
        return await identities.revoke_key(connection, lookup)


async def register_model(
    database: AsyncEngine,
    *,
    name: str,
    path: str,
    max_model_len: int,
    default_max_tokens: int | None,
    bounds: LengthBounds,
    tariff: Tariff,
    tenant: str,
) -> None:
    """Register or change a model and grant it to a tenant."""
    async with database.begin() as connection:
        await registry.put_model(
            connection,
            name=name,
            path=path,
            max_model_len=max_model_len,
            default_max_tokens=default_max_tokens,
            bounds=bounds,
        )
        await registry.put_tariff(connection, name, tariff)
        tenant_id = await identities.ensure_tenant(connection, new_id("tenant"), tenant)
        await registry.grant(connection, tenant_id, name)
