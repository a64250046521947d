"""/v1/responses: a chat completion as a Response object, waited for, streamed, or run in the background."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response as HttpResponse

from api.accept import accept
from api.auth import Caller
from api.body import read_json, takes
from api.call import Call
from api.idempotency import idempotency_of
from api.json import JsonResponse
from api.response_follow import find_readable, follow
from api.response_object import render, response_object
from api.response_stream import frames
from api.sse import ClientGoneError, EventStream, unless_gone
from api.state import ApiState, state_of
from api.webhooks import check_webhook
from core.ids import looks_like_id
from core.lanes import Priority
from core.states import FINAL, TaskState
from runtime.prepare import Terms
from schemas.chat import ChatCompletionRequest
from schemas.errors import RequestError
from schemas.requests import validate
from schemas.response_chat import answered, chat_request, renamed
from schemas.response_items import read_items
from schemas.responses import URL, ResponseCreate, check_variants
from services.authenticate import Access
from services.new_id import new_id
from services.once import Earlier, IdempotencyKey, forget
from services.recall import find_response, read_exchange
from storage.records import NewResponse, Task
from storage.responses import Response

router = APIRouter(tags=["openai"])
_CHAT = "/v1/chat/completions"


@router.post(
    URL,
    openapi_extra=takes(ResponseCreate),
)
async def create(request: Request, access: Caller) -> HttpResponse:
    """Answer, whole or as a stream; or accept a response to be polled and streamed later."""
    state = state_of(request)
    raw, parsed = await read_json(request, state.settings.max_body_bytes)
    asked = validate(ResponseCreate, parsed)
    check_variants(asked)
    await check_webhook(state, access.caller.tenant_id, asked.webhook)
    new, chat = await _prepare(state, access, asked)
    key = idempotency_of(request, raw)
    try:
        if asked.background:
            return await _background(request, access, asked, new, chat, key)
        # of a call whose client gave up nothing is left to give again, unless it named it
        key = key if key is not None and key.again is None else None
        return await _wait(request, access, asked, new, chat, key)
    except RequestError as error:
        raise renamed(error) from error


async def _prepare(
    state: ApiState, access: Access, asked: ResponseCreate
) -> tuple[NewResponse, ChatCompletionRequest]:
    response_id = new_id("resp")
    items = read_items(asked.input, response_id)
    chat = chat_request(asked, await _earlier(state, access, asked.previous_response_id), items)
    kept = asked.model_dump(exclude_none=True, by_alias=True, exclude={"input", "stream", "stream_options"})
    new = NewResponse(
        id=response_id,
        previous_id=asked.previous_response_id,
        background=bool(asked.background),
        stored=asked.store is not False,
        input=orjson.dumps(items).decode(),
        request=orjson.dumps(kept).decode(),
    )
    return new, chat


async def _earlier(state: ApiState, access: Access, previous_id: str | None) -> Sequence[dict[str, Any]]:
    """The messages of the conversation so far, without the instructions, which are each response's own."""
    if previous_id is None:
        return ()
    unknown = RequestError(
        404, f"No response {previous_id[:64]!r}.", "previous_response_not_found", "previous_response_id"
    )
    previous = None
    if looks_like_id("resp", previous_id):
        previous = await find_response(state.database, access.caller.tenant_id, previous_id)
    if previous is None:
        raise unknown
    if previous.task.state is not TaskState.COMPLETED:
        raise RequestError(
            400,
            f"The response {previous_id!r} is {previous.task.state}, not completed.",
            "previous_response_not_completed",
            "previous_response_id",
        )
    exchange = await read_exchange(state.database, previous.task.id)
    if exchange is None or exchange[1] is None:
        raise unknown
    sent, answer = orjson.loads(exchange[0]), orjson.loads(exchange[1])
    instructions = 1 if orjson.loads(previous.request).get("instructions") else 0
    return [*sent["messages"][instructions:], answered(answer["choices"][0]["message"])]


def _seen(new: NewResponse, task: Task) -> Response:
    return Response(new.id, new.previous_id, new.background, new.request, task)


async def _background(
    request: Request,
    access: Access,
    asked: ResponseCreate,
    new: NewResponse,
    chat: ChatCompletionRequest,
    key: IdempotencyKey | None,
) -> HttpResponse:
    """Accept; the caller's leaving changes nothing."""
    state = state_of(request)

    def told(task: Task) -> Earlier:
        return Earlier(new.id, 200, orjson.dumps(response_object(_seen(new, task))).decode())

    terms = Terms(
        url=_CHAT,
        priority=Priority.STANDARD,
        deadline_s=state.settings.task_ttl_s,
        max_attempts=state.settings.max_attempts,
        metadata=asked.metadata or {},
        webhook=asked.webhook,
        response=new,
    )
    accepted = await accept(state, access, chat, terms, idempotency=key, answer=told)
    if isinstance(accepted, Earlier):
        if asked.stream:
            return await follow(state, await find_readable(state, access, accepted.object_id), after=-1)
        return HttpResponse(accepted.answer, accepted.status, media_type="application/json")
    response = _seen(new, accepted)
    if asked.stream:
        return await follow(state, response, after=-1)
    return JsonResponse(response_object(response), 200, _headers(accepted))


async def _wait(
    request: Request,
    access: Access,
    asked: ResponseCreate,
    new: NewResponse,
    chat: ChatCompletionRequest,
    key: IdempotencyKey | None,
) -> HttpResponse:
    """Run it as a synchronous call, whose caller's leaving stops it."""
    state, tenant_id = state_of(request), access.caller.tenant_id
    call = Call(state, access, streamed=bool(asked.stream))
    terms = call.terms(_CHAT, metadata=asked.metadata or {}, response=new)
    stack = AsyncExitStack()

    async def give_back() -> None:
        # what came to nothing is not to be told again: the next try is to be one
        if key is not None:
            await forget(state.database, tenant_id, key)

    async def finish(left_early: bool) -> None:
        if left_early:
            await give_back()
        await end(left_early)

    accepted: Task | Earlier | None = None
    try:
        accepted = await call.begin(
            stack, chat, terms, idempotency=key, answer=lambda _: Earlier(new.id, 200, None)
        )
        if isinstance(accepted, Earlier):
            return await _again(state, tenant_id, accepted.object_id, streamed=bool(asked.stream))
        first = await unless_gone(request, call.first_event())
        if asked.stream:
            told = frames(state, _seen(new, accepted), call.events(first), after=-1)
            end = call.finisher(stack)
            response: HttpResponse = EventStream(told, finish=finish, headers=_headers(accepted))
            stack = AsyncExitStack()  # the response closes it now
            return response
        await unless_gone(request, call.answer(first))
        ended = await find_response(state.database, tenant_id, new.id, deleted=True)
        assert ended is not None
        return JsonResponse(await render(state, ended), 200, _headers(accepted))
    except ClientGoneError:
        await asyncio.shield(give_back())
        await call.cancel()
        return HttpResponse(status_code=499)  # nobody reads it
    except RequestError:
        if isinstance(accepted, Task):  # else the key is another's, or nobody's
            await give_back()
        raise
    finally:
        await stack.aclose()


async def _again(state: ApiState, tenant_id: str, response_id: str, *, streamed: bool) -> HttpResponse:
    """Answer what an earlier call of the same key is about, kept or not."""
    response = await find_response(state.database, tenant_id, response_id, deleted=True)
    if response is None:
        raise RequestError(404, "The response of this Idempotency-Key was deleted.", "response_not_found")
    if response.task.state not in FINAL:
        raise RequestError(
            409,
            "The request with this Idempotency-Key is still answered; ask again.",
            "idempotency_key_in_flight",
            headers={"Retry-After": "1"},
        )
    if streamed:
        return await follow(state, response, after=-1)
    return JsonResponse(await render(state, response), 200, _headers(response.task))


def _headers(task: Task) -> dict[str, str]:
    return {"X-Headrace-Task-Id": task.id}
