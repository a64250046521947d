"""/v1/admin/limits: rates of tenants, of their keys, and of tenants on models."""

from dataclasses import asdict
from typing import Any

from fastapi import Request

from api.admin.edge import Administrator, Paged, admin_router, page_object, read_body
from api.body import takes
from api.state import state_of
from core.times import seconds_of
from schemas.money import LimitPut
from services.manage_limits import delete_limit, list_limits, put_limit
from storage.limits import StoredLimit

router = admin_router()
_RATES = {"requests_per_minute", "tokens_per_minute", "burst_requests", "burst_tokens"}


def _object(limit: StoredLimit) -> dict[str, Any]:
    return {**asdict(limit), "object": "limit", "created_at": seconds_of(limit.created_at)}


@router.get("/limits")
async def list_(request: Request, page: Paged, tenant: str | None = None) -> dict[str, Any]:
    """List limits, of one tenant or of all."""
    found, has_more = await list_limits(state_of(request).database, page, tenant=tenant)
    return page_object([_object(limit) for limit in found], has_more)


@router.put("/limits", openapi_extra=takes(LimitPut))
async def put(request: Request, actor: Administrator) -> dict[str, Any]:
    """Set the rates of a tenant, of a key, or of a tenant on a model, in place of former ones."""
    asked = await read_body(request, LimitPut)
    stored = await put_limit(
        state_of(request).database,
        actor,
        tenant=asked.tenant,
        key=asked.key,
        model=asked.model,
        rates=asked.model_dump(include=_RATES),
    )
    return _object(stored)


@router.delete("/limits/{limit_id}")
async def delete(request: Request, actor: Administrator, limit_id: str) -> dict[str, Any]:
    """Take a limit away."""
    deleted = await delete_limit(state_of(request).database, actor, limit_id)
    return {"id": deleted.id, "object": "limit", "deleted": True}
