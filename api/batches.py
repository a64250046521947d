"""/v1/batches: create, list, retrieve, cancel."""

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.accept import refusal_of
from api.auth import Caller
from api.batch_object import batch_object
from api.body import read_json, takes
from api.files import find as find_file
from api.files import page_object
from api.idempotency import idempotency_of
from api.json import JsonResponse
from api.queries import PageSize
from api.state import ApiState, state_of
from api.webhooks import check_webhook
from core.files import Purpose
from core.ids import looks_like_id
from schemas.batches import BatchCreate
from schemas.errors import RequestError
from schemas.requests import validate
from services.create_batch import create_batch
from services.end_batch import cancel_batch
from services.new_id import new_id
from services.once import KeyInFlightError, KeyReusedError
from services.read_batches import find_batch, list_batch_page
from storage.batches import Batch, NewBatch
from storage.idempotency import Earlier
from storage.wakes import News

router = APIRouter(tags=["batches"])


def not_found(batch_id: str, param: str | None = None) -> RequestError:
    """404, the same for an unknown id and for another tenant's."""
    return RequestError(404, f"No batch {batch_id!r}.", "batch_not_found", param)


async def find(state: ApiState, access: Caller, batch_id: str) -> Batch:
    """Read one of the caller's batches. Raises: RequestError 404."""
    batch = None
    if looks_like_id("batch", batch_id):
        batch = await find_batch(state.database, access.caller.tenant_id, batch_id)
    if batch is None:
        raise not_found(batch_id)
    return batch


@router.post(
    "/v1/batches",
    openapi_extra=takes(BatchCreate),
)
async def create(request: Request, access: Caller) -> Response:
    """Accept a batch; its input is validated next, and its lines as they come to run."""
    state = state_of(request)
    raw, parsed = await read_json(request, state.settings.max_body_bytes)
    asked = validate(BatchCreate, parsed)
    await check_webhook(state, access.caller.tenant_id, asked.webhook)
    file = await find_file(state, access, asked.input_file_id, "input_file_id")
    if file.purpose is not Purpose.BATCH:
        message = f"The file's purpose is {file.purpose}, not batch."
        raise RequestError(400, message, "invalid_value", "input_file_id")
    after = asked.output_expires_after
    new = NewBatch(
        id=new_id("batch"),
        caller=access.caller,
        endpoint=asked.endpoint,
        completion_window=asked.completion_window,
        window_s=asked.window_s,
        metadata=asked.metadata or {},
        output_ttl_s=after.seconds if after else state.settings.batch_file_ttl_s,
        input_file_id=file.id,
        input_bytes=file.bytes,
        in_file_order=asked.order == "file",
        webhook=asked.webhook,
    )
    try:
        accepted = await create_batch(state.database, new, idempotency_of(request, raw), _told)
    except (KeyReusedError, KeyInFlightError) as error:
        raise refusal_of(error) from error
    if isinstance(accepted, Earlier):  # told before: told again
        return Response(accepted.answer, accepted.status, media_type="application/json")
    state.publisher.tell(News.BATCHES)
    return JsonResponse(batch_object(accepted))


def _told(batch: Batch) -> Earlier:
    return Earlier(batch.id, 200, orjson.dumps(batch_object(batch)).decode())


@router.get("/v1/batches")
async def list_(
    request: Request,
    access: Caller,
    limit: PageSize = 20,
    after: str | None = None,
) -> Response:
    """List the tenant's batches, newest first."""
    if after is not None and not looks_like_id("batch", after):
        raise not_found(after, "after")
    page = await list_batch_page(
        state_of(request).database, access.caller.tenant_id, limit=limit, after=after
    )
    if page is None:
        raise not_found(str(after), "after")
    found, has_more = page
    return JsonResponse(page_object([batch_object(batch) for batch in found], has_more))


@router.get("/v1/batches/{batch_id}")
async def get(request: Request, access: Caller, batch_id: str) -> Response:
    """Describe one batch."""
    return JsonResponse(batch_object(await find(state_of(request), access, batch_id)))


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel(request: Request, access: Caller, batch_id: str) -> Response:
    """Cancel a batch: 200 with it, whatever state it is in; one that is final stays as it is."""
    state = state_of(request)
    batch = await find(state, access, batch_id)
    await cancel_batch(state.database, access.caller.tenant_id, batch.id)
    state.publisher.tell(News.BATCHES)
    return JsonResponse(batch_object(await find(state, access, batch_id)))
