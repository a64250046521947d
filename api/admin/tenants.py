"""/v1/admin/tenants. `{tenant}` is an id or a name."""

from typing import Any

from fastapi import Request

from api.admin.edge import Administrator, Paged, admin_router, page_object, read_body
from api.auth import Admin
from api.body import takes
from api.state import state_of
from core.times import seconds_of
from schemas.admin import TenantChange, TenantCreate
from services.manage_tenants import add_tenant, change_tenant, list_tenants, read_tenant
from storage.tenants import Tenant

router = admin_router()


def _object(tenant: Tenant) -> dict[str, Any]:
    return {
        "id": tenant.id,
        "object": "tenant",
        "name": tenant.name,
        "created_at": seconds_of(tenant.created_at),
        "disabled_at": seconds_of(tenant.disabled_at),
        "class": tenant.tenant_class,
        "retention_s": tenant.retention_s,
        "store": tenant.store,
        "weight": tenant.weight,
        "max_queued_tasks": tenant.max_queued_tasks,
        "max_queued_tokens": tenant.max_queued_tokens,
        "max_running_tasks": tenant.max_running_tasks,
    }


@router.get("/tenants")
async def list_(request: Request, page: Paged) -> dict[str, Any]:
    """List tenants."""
    found, has_more = await list_tenants(state_of(request).database, page)
    return page_object([_object(tenant) for tenant in found], has_more)


@router.post("/tenants", status_code=201, openapi_extra=takes(TenantCreate))
async def create(request: Request, actor: Administrator) -> dict[str, Any]:
    """Make a tenant."""
    asked = await read_body(request, TenantCreate)
    settings = asked.model_dump(by_alias=True, exclude={"name"})
    return _object(await add_tenant(state_of(request).database, actor, asked.name, settings))


@router.get("/tenants/{tenant}")
async def get(request: Request, tenant: str) -> dict[str, Any]:
    """Describe a tenant."""
    return _object(await read_tenant(state_of(request).database, tenant))


@router.patch("/tenants/{tenant}", openapi_extra=takes(TenantChange))
async def change(request: Request, actor: Administrator, access: Admin, tenant: str) -> dict[str, Any]:
    """Disable or enable a tenant, or change its share, its bounds, or how long its prompts and outputs are kept."""
    changes = (await read_body(request, TenantChange)).model_dump(exclude_unset=True, by_alias=True)
    database = state_of(request).database
    return _object(await change_tenant(database, actor, tenant, changes, of=access.caller.tenant_id))
