"""/v1/webhooks: a tenant's secrets, the log of its deliveries, and URLs that wanted no more."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.auth import Caller
from api.body import read_json, takes
from api.json import JsonResponse
from api.queries import PageSize
from api.state import ApiState, state_of
from core.ids import looks_like_id
from core.targets import check_url
from schemas.errors import RequestError
from schemas.requests import validate
from schemas.webhooks import SecretCreate
from services.manage_webhooks import (
    create_secret,
    enable,
    end_secret,
    list_deliveries,
    list_disabled,
    list_secrets,
    why_unusable,
)

router = APIRouter(tags=["webhooks"])
_OVERLAP_S = 24 * 3600.0


async def check_webhook(state: ApiState, tenant_id: str, url: str | None) -> None:
    """Refuse a webhook that nothing would be sent to. Raises: RequestError 400."""
    if url is None:
        return
    try:
        check_url(url, private_allowed=state.settings.webhook_private)
    except ValueError as error:
        raise RequestError(400, f"Invalid webhook: it {error}.", "invalid_value", "webhook") from error
    if reason := await why_unusable(state.database, tenant_id, url):
        raise RequestError(400, f"The webhook {reason}.", "webhook_unusable", "webhook")


@router.post(
    "/v1/webhooks/secrets",
    status_code=201,
    openapi_extra=takes(SecretCreate),
)
async def rotate(request: Request, access: Caller) -> Response:
    """Make a secret, shown here once. Earlier ones go on signing beside it for `overlap_s` (a day)."""
    state = state_of(request)
    _, parsed = await read_json(request, state.settings.max_body_bytes)
    asked = validate(SecretCreate, parsed)
    secret_id, text, made_at = await create_secret(
        state.database,
        access.caller.tenant_id,
        pepper=state.settings.key_pepper.get_secret_value().encode(),
        overlap_s=_OVERLAP_S if asked.overlap_s is None else asked.overlap_s,
    )
    return JsonResponse(_secret(secret_id, made_at, None) | {"secret": text}, 201)


@router.get("/v1/webhooks/secrets")
async def secrets(request: Request, access: Caller) -> Response:
    """List the secrets that sign now, newest first, without their texts."""
    found = await list_secrets(state_of(request).database, access.caller.tenant_id)
    return JsonResponse({"object": "list", "data": [_secret(*one) for one in found]})


@router.delete("/v1/webhooks/secrets/{secret_id}")
async def revoke(request: Request, access: Caller, secret_id: str) -> Response:
    """End a secret now."""
    ended = looks_like_id("whs", secret_id) and await end_secret(
        state_of(request).database, access.caller.tenant_id, secret_id
    )
    if not ended:
        raise RequestError(404, f"No webhook secret {secret_id[:64]!r}.", "webhook_secret_not_found")
    return JsonResponse({"id": secret_id, "object": "webhook_secret", "deleted": True})


@router.get("/v1/webhooks/disabled")
async def disabled(request: Request, access: Caller) -> Response:
    """List the URLs that answered 410: nothing is sent to them any more."""
    found = await list_disabled(state_of(request).database, access.caller.tenant_id)
    data = [
        {"id": one, "object": "webhook_disabled", "url": url, "disabled_at": int(at.timestamp())}
        for one, url, at in found
    ]
    return JsonResponse({"object": "list", "data": data})


@router.delete("/v1/webhooks/disabled/{disabled_id}")
async def enable_again(request: Request, access: Caller, disabled_id: str) -> Response:
    """Let a URL be used again, for deliveries to come."""
    enabled = looks_like_id("whd", disabled_id) and await enable(
        state_of(request).database, access.caller.tenant_id, disabled_id
    )
    if not enabled:
        raise RequestError(404, f"No disabled webhook {disabled_id[:64]!r}.", "webhook_not_found")
    return JsonResponse({"id": disabled_id, "object": "webhook_disabled", "deleted": True})


@router.get("/v1/webhooks/deliveries")
async def deliveries(
    request: Request,
    access: Caller,
    limit: PageSize = 20,
    after: str | None = None,
    state: Annotated[str | None, Query(pattern="^(pending|delivered|failed|disabled)$")] = None,
    task: str | None = None,
    batch: str | None = None,
) -> Response:
    """List deliveries with all their tries, newest first; `task`, `batch`: of that one."""
    if after is not None and not looks_like_id("msg", after):
        raise RequestError(404, f"No delivery {after[:64]!r}.", "delivery_not_found", "after")
    if task is not None and not looks_like_id("task", task):
        raise RequestError(404, f"No task {task[:64]!r}.", "task_not_found", "task")
    if batch is not None and not looks_like_id("batch", batch):
        raise RequestError(404, f"No batch {batch[:64]!r}.", "batch_not_found", "batch")
    found = await list_deliveries(
        state_of(request).database,
        access.caller.tenant_id,
        limit=limit + 1,
        after=after,
        state=state,
        task_id=task,
        batch_id=batch,
    )
    data = [_delivery(row) for row in found[:limit]]
    return JsonResponse(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(found) > limit,
        }
    )


def _secret(secret_id: str, made_at: datetime, ends_at: datetime | None) -> dict[str, Any]:
    return {
        "id": secret_id,
        "object": "webhook_secret",
        "created_at": int(made_at.timestamp()),
        "expires_at": int(ends_at.timestamp()) if ends_at else None,
    }


def _delivery(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "webhook_delivery",
        "task": row.task_id,
        "batch": row.batch_id,
        "url": row.url,
        "type": row.type,
        "status": row.state,
        "created_at": int(row.created_at.timestamp()),
        "next_attempt_at": int(row.next_at.timestamp()) if row.next_at else None,
        "attempts": [{**one, "at": int(one["at"])} for one in row.tries or ()],
    }
