"""Set and take away rate limits; in force within a second on every API process."""

from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.change import ConflictError, MissingError, changing
from services.manage_tenants import require_tenant
from services.new_id import new_id
from storage import identities, limits, registry
from storage.audit import Actor
from storage.autocommit import autocommit
from storage.limits import StoredLimit
from storage.paging import Page


async def require_owner(connection: AsyncConnection, tenant: str, key: str | None) -> tuple[str, str | None]:
    """Find a tenant and one of its keys; return the tenant's id and the key's first.

    Raises: MissingError, ConflictError.
    """
    owner = await require_tenant(connection, tenant)
    if key is None:
        return owner.id, None
    found = await identities.get_key(connection, key)
    if found is None:
        raise MissingError("key", key)
    if found.tenant_id != owner.id:
        raise ConflictError("key_of_another_tenant", f"The key {key!r} is not one of {owner.name}'s.")
    return owner.id, found.first_id


async def put_limit(
    database: AsyncEngine,
    actor: Actor,
    *,
    tenant: str,
    key: str | None,
    model: str | None,
    rates: dict[str, Any],
) -> StoredLimit:
    """Set the rates of one owner, in place of former ones. Raises: MissingError, ConflictError."""
    async with changing(database, actor) as change:
        tenant_id, key_id = await require_owner(change.connection, tenant, key)
        if model is not None and await registry.get_model(change.connection, model) is None:
            raise MissingError("model", model)
        before = await limits.find_limit(change.connection, tenant_id, key_id, model)
        after = await limits.put_limit(
            change.connection, new_id("limit"), tenant_id=tenant_id, key_id=key_id, model=model, rates=rates
        )
        await change.record("limit.put", after.id, tenant_id=tenant_id, before=before, after=after)
        return after


async def delete_limit(database: AsyncEngine, actor: Actor, limit_id: str) -> StoredLimit:
    """Take a limit away; return it. Raises: MissingError."""
    async with changing(database, actor) as change:
        before = await limits.delete_limit(change.connection, limit_id)
        if before is None:
            raise MissingError("limit", limit_id)
        await change.record("limit.delete", before.id, tenant_id=before.tenant_id, before=before)
        return before


async def list_limits(
    database: AsyncEngine, page: Page, *, tenant: str | None
) -> tuple[list[StoredLimit], bool]:
    """List limits and whether there are more. Raises: MissingError for an unknown tenant."""
    async with autocommit(database) as connection:
        tenant_id = (await require_tenant(connection, tenant)).id if tenant is not None else None
        return await limits.list_limits(connection, page, tenant_id=tenant_id)
