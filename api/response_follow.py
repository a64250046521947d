"""/v1/responses/{id}: poll, stream from any cursor on any API process, cancel, delete, list the input."""

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response as HttpResponse
from redis.exceptions import RedisError

from api.auth import Caller
from api.ending import cancel_task
from api.events import has_more
from api.json import JsonResponse
from api.queries import PageSize
from api.response_object import output_of, render
from api.response_stream import frames
from api.sse import EventStream, unless_gone
from api.state import ApiState, state_of
from core.ids import looks_like_id
from core.states import FINAL
from schemas.errors import RequestError, overloaded
from schemas.events import FINAL_STATES
from schemas.responses import LOGPROBS, URL, unsupported
from services.authenticate import Access
from services.recall import delete_response, find_response, list_turns
from storage.responses import Response

router = APIRouter(tags=["openai"])
_STOPPED_S = 2.0  # a cancel is answered with what it came to, if that takes no longer


def _unknown(response_id: str) -> RequestError:
    return RequestError(404, f"No response {response_id[:64]!r}.", "response_not_found")


async def find_readable(state: ApiState, access: Access, response_id: str) -> Response:
    """Read one of the caller's responses. Raises: RequestError 404."""
    response = None
    if looks_like_id("resp", response_id):
        response = await find_response(state.database, access.caller.tenant_id, response_id)
    if response is None:
        raise _unknown(response_id)
    return response


async def follow(state: ApiState, response: Response, *, after: int) -> HttpResponse:
    """Stream the events above the cursor, then those to come. Raises: RequestError 410, 503."""
    stack = AsyncExitStack()
    try:
        subscription = await stack.enter_async_context(state.live.subscription(response.task.id))
        await has_more(state, response.task, 0)  # the numbers are counted from the first event on
    except RedisError as error:
        await stack.aclose()
        raise overloaded("Streams are not available; poll the response.", "streams_unavailable", 5) from error
    except BaseException:
        await stack.aclose()
        raise

    async def finish(left_early: bool) -> None:
        if not left_early:
            state.note_delivered(response.task)
        await stack.aclose()

    source = subscription.events(1, state.settings.keepalive_s)
    headers = {"X-Headrace-Task-Id": response.task.id}
    return EventStream(frames(state, response, source, after), finish=finish, headers=headers)


def _check_include(request: Request) -> None:
    for name in ("include", "include[]"):
        for wanted in request.query_params.getlist(name):
            if wanted != LOGPROBS:
                raise unsupported("include", wanted)


@router.get(f"{URL}/{{response_id}}")
async def get(
    request: Request,
    access: Caller,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    include_obfuscation: bool = False,
) -> HttpResponse:
    """Poll a response; or stream its events above the cursor, all of them without one."""
    state = state_of(request)
    _check_include(request)
    if include_obfuscation:
        raise unsupported("include_obfuscation", "true")
    if starting_after is not None and not stream:
        raise RequestError(400, "starting_after needs stream=true.", "invalid_value", "starting_after")
    response = await find_readable(state, access, response_id)
    if stream:
        return await follow(state, response, after=-1 if starting_after is None else starting_after)
    return JsonResponse(await render(state, response))


@router.post(f"{URL}/{{response_id}}/cancel")
async def cancel(request: Request, access: Caller, response_id: str) -> HttpResponse:
    """Cancel a response that runs in the background; one that is final stays as it is."""
    state = state_of(request)
    response = await find_readable(state, access, response_id)
    if not response.background:
        raise RequestError(
            400, "Only background responses can be cancelled; close the connection.", "not_in_background"
        )
    if response.task.state not in FINAL:
        await unless_gone(request, _cancel(state, access, response))
        response = await find_readable(state, access, response_id)
    return JsonResponse(await render(state, response))


async def _cancel(state: ApiState, access: Access, response: Response) -> None:
    try:
        async with asyncio.timeout(_STOPPED_S), state.live.subscription(response.task.id) as subscription:
            await asyncio.shield(cancel_task(state, access.caller.tenant_id, response.task.id))
            async for event in subscription.events(1, _STOPPED_S):
                if event is not None and event.type in FINAL_STATES:
                    return
    except TimeoutError:
        return  # it is stopping
    except RedisError:
        await cancel_task(state, access.caller.tenant_id, response.task.id)


@router.delete(f"{URL}/{{response_id}}")
async def delete(request: Request, access: Caller, response_id: str) -> HttpResponse:
    """Make a response unknown, stop it if it runs; its texts are purged within a minute or two."""
    state = state_of(request)
    await find_readable(state, access, response_id)
    task_id = await delete_response(state.database, access.caller.tenant_id, response_id)
    if task_id is None:
        raise _unknown(response_id)
    await cancel_task(state, access.caller.tenant_id, task_id)
    return JsonResponse({"id": response_id, "object": "response", "deleted": True})


@router.get(f"{URL}/{{response_id}}/input_items")
async def input_items(
    request: Request,
    access: Caller,
    response_id: str,
    limit: PageSize = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: str | None = None,
) -> HttpResponse:
    """List what a response was made from: the conversation before it, and its own input."""
    state = state_of(request)
    _check_include(request)
    response = await find_readable(state, access, response_id)
    items = await _items(state, access, response)
    if order == "desc":
        items.reverse()
    start = 0
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise RequestError(404, f"No item {after[:64]!r} in this response.", "item_not_found", "after")
        start = places[0] + 1
    page = items[start : start + limit]
    return JsonResponse(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + limit < len(items),
        }
    )


async def _items(state: ApiState, access: Access, response: Response) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for turn in await list_turns(state.database, access.caller.tenant_id, response.id):
        items += orjson.loads(turn.input)
        if turn.id != response.id and turn.answer is not None:
            items += output_of(turn.answer, turn.id)
    return items
