"""Make and change tenants. None is ever deleted: the ledger names them."""

from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.change import ConflictError, MissingError, changing
from services.new_id import new_id
from storage import tenants
from storage.audit import Actor
from storage.autocommit import autocommit
from storage.paging import Page
from storage.tenants import Tenant


async def require_tenant(connection: AsyncConnection, id_or_name: str, *, lock: bool = False) -> Tenant:
    """Find a tenant by id or name. Raises: MissingError."""
    found = await tenants.find_tenant(connection, id_or_name, lock=lock)
    if found is None:
        raise MissingError("tenant", id_or_name)
    return found


async def add_tenant(database: AsyncEngine, actor: Actor, name: str, settings: dict[str, Any]) -> Tenant:
    """Make a tenant, which has no key and no model yet; `settings` as in `change_tenant`.

    Raises: ConflictError when the name is taken.
    """
    try:
        async with changing(database, actor) as change:
            added = await tenants.insert_tenant(change.connection, new_id("tenant"), name, settings)
            await change.record("tenant.create", added.id, tenant_id=added.id, after=added)
            return added
    except IntegrityError as error:
        raise ConflictError("tenant_exists", f"There is a tenant {name!r} already.") from error


async def change_tenant(
    database: AsyncEngine, actor: Actor, id_or_name: str, changes: dict[str, Any], *, of: str
) -> Tenant:
    """Change `disabled` and other settings, by column; `of` is the tenant who asks.

    Raises: MissingError; ConflictError when who asks would lock itself out.
    """
    async with changing(database, actor) as change:
        before = await require_tenant(change.connection, id_or_name, lock=True)
        if changes.get("disabled") and before.id == of:
            raise ConflictError("own_tenant", "This key's own tenant can't be disabled with it.")
        if not changes:
            return before
        after = await tenants.update_tenant(change.connection, before.id, changes)
        await change.record("tenant.change", before.id, tenant_id=before.id, before=before, after=after)
        return after


async def read_tenant(database: AsyncEngine, id_or_name: str) -> Tenant:
    """Read a tenant. Raises: MissingError."""
    async with autocommit(database) as connection:
        return await require_tenant(connection, id_or_name)


async def list_tenants(database: AsyncEngine, page: Page) -> tuple[list[Tenant], bool]:
    """List tenants, and whether there are more."""
    async with autocommit(database) as connection:
        return await tenants.list_tenants(connection, page)
