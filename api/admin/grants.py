"""/v1/admin/grants: which tenant may use which model, within which limits."""

from dataclasses import asdict
from typing import Any

from fastapi import Request

from api.admin.edge import Administrator, Paged, admin_router, page_object, read_body
from api.body import takes
from api.state import state_of
from core.times import seconds_of
from schemas.admin import GrantPut
from services.manage_grants import delete_grant, list_grants, put_grant
from storage.grants import Grant

router = admin_router()
ONE = "/tenants/{tenant}/grants/{model:path}"


def _object(grant: Grant) -> dict[str, Any]:
    return {
        "id": grant.id,
        "object": "grant",
        "tenant_id": grant.tenant_id,
        "model": grant.model,
        "created_at": seconds_of(grant.created_at),
        **asdict(grant.limits),
    }


@router.get("/grants")
async def list_(
    request: Request, page: Paged, tenant: str | None = None, model: str | None = None
) -> dict[str, Any]:
    """List grants, of one tenant or model or of all."""
    found, has_more = await list_grants(state_of(request).database, page, tenant=tenant, model=model)
    return page_object([_object(grant) for grant in found], has_more)


@router.put(ONE, openapi_extra=takes(GrantPut))
async def put(request: Request, actor: Administrator, tenant: str, model: str) -> dict[str, Any]:
    """Grant a model. Limits that are left out are none, whatever they were before."""
    asked = await read_body(request, GrantPut)
    return _object(await put_grant(state_of(request).database, actor, tenant, model, asked.limits))


@router.delete(ONE)
async def delete(request: Request, actor: Administrator, tenant: str, model: str) -> dict[str, Any]:
    """Take a model away: unknown to the tenant within a second; its queued tasks end as forbidden."""
    deleted = await delete_grant(state_of(request).database, actor, tenant, model)
    return {"id": deleted.id, "object": "grant", "deleted": True}
