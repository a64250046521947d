"""Let tenants use models, and take that back: what is queued then ends as forbidden when it would start."""

from sqlalchemy.ext.asyncio import AsyncEngine

from core.grants import GrantLimits
from services.change import MissingError, changing
from services.manage_tenants import require_tenant
from storage import grants, registry
from storage.audit import Actor
from storage.autocommit import autocommit
from storage.grants import Grant
from storage.paging import Page


async def put_grant(
    database: AsyncEngine, actor: Actor, tenant: str, model: str, limits: GrantLimits
) -> Grant:
    """Grant a model within limits, which replace former ones. Raises: MissingError."""
    async with changing(database, actor) as change:
        owner = await require_tenant(change.connection, tenant)
        if await registry.get_model(change.connection, model) is None:
            raise MissingError("model", model)
        before = await grants.get_grant(change.connection, owner.id, model)
        after = await grants.put_grant(change.connection, owner.id, model, limits)
        await change.record("grant.put", after.id, tenant_id=owner.id, before=before, after=after)
        return after


async def delete_grant(database: AsyncEngine, actor: Actor, tenant: str, model: str) -> Grant:
    """Take a model away from a tenant; return what was granted. Raises: MissingError."""
    async with changing(database, actor) as change:
        owner = await require_tenant(change.connection, tenant)
        before = await grants.get_grant(change.connection, owner.id, model)
        if before is None:
            raise MissingError("grant", f"{owner.name}/{model}")
        await grants.delete_grant(change.connection, owner.id, model)
        await change.record("grant.delete", before.id, tenant_id=owner.id, before=before)
        return before


async def list_grants(
    database: AsyncEngine, page: Page, *, tenant: str | None, model: str | None
) -> tuple[list[Grant], bool]:
    """List grants and whether there are more. Raises: MissingError for an unknown tenant."""
    async with autocommit(database) as connection:
        tenant_id = (await require_tenant(connection, tenant)).id if tenant is not None else None
        return await grants.list_grants(connection, page, tenant_id=tenant_id, model=model)
