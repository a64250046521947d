"""/v1/chat/completions: the same task as any other, with the caller waiting for it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import orjson
import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from redis.exceptions import RedisError

from api.accept import accept
from api.auth import Caller
from api.body import read_json
from api.ending import cancel_task, give_up_task
from api.live import Subscription
from api.sse import ClientGoneError, EventStream, unless_gone
from api.state import ApiState, state_of
from core.failures import RULES, Failure
from core.ids import created_ms
from core.lanes import Priority
from core.states import TaskState
from runtime.prepare import Terms
from schemas import events
from schemas.chat import ChatCompletionRequest
from schemas.completion import DONE, KEEPALIVE, ChunkEncoder
from schemas.errors import RequestError, overloaded
from schemas.requests import validate
from services.authenticate import Access
from services.look_up import look_up, read_response
from services.register import new_id
from storage.errors import is_away
from storage.streams import Event

router = APIRouter(tags=["openai"])
log = structlog.get_logger()
URL = "/v1/chat/completions"
_RETRY_AFTER_S = 5.0


@router.post(
    URL,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": ChatCompletionRequest.model_json_schema()}},
        }
    },
)
async def create(request: Request, access: Caller) -> Response:
    """Answer a conversation: whole, or as a stream of chunks."""
    state = state_of(request)
    _, parsed = await read_json(request, state.settings.max_body_bytes)
    body = validate(ChatCompletionRequest, parsed)
    call = _Call(state, access, body)
    stack = AsyncExitStack()
    try:
        await call.begin(stack)
        first = await unless_gone(request, call.first_event())
        if body.stream:
            response: Response = EventStream(
                call.frames(first), finish=call.finisher(stack), headers={"X-Headrace-Task-Id": call.task_id}
            )
            stack = AsyncExitStack()  # the response closes it now
        else:
            answer = await unless_gone(request, call.answer(first))
            response = Response(
                answer, media_type="application/json", headers={"X-Headrace-Task-Id": call.task_id}
            )
    except ClientGoneError:
        await call.cancel()
        return Response(status_code=499)  # nobody reads it
    finally:
        await stack.aclose()
    return response


class _Call:
    """One synchronous call and its task."""

    def __init__(self, state: ApiState, access: Access, body: ChatCompletionRequest) -> None:
        self.task_id = new_id("task")
        self._state, self._access, self._body = state, access, body
        limit_s = state.settings.sync_stream_s if body.stream else state.settings.sync_finish_s
        self._start_s, self._limit_s = state.settings.sync_start_s, limit_s
        self._events: AsyncIterator[Event | None]
        self._late = False  # the time to finish ran out and the task was told to stop

    async def begin(self, stack: AsyncExitStack) -> None:
        """Subscribe, then accept: no event is missed. Raises: RequestError."""
        try:
            subscription: Subscription = await stack.enter_async_context(
                self._state.live.subscription(self.task_id)
            )
        except RedisError as error:
            raise overloaded(
                "Synchronous calls are not available now; submit a task.", "streams_unavailable", 5
            ) from error
        await accept(
            self._state,
            self._access,
            self._body,
            Terms(
                url=URL,
                priority=Priority.INTERACTIVE,
                deadline_s=self._start_s + self._limit_s,
                max_attempts=self._state.settings.max_attempts,
                task_id=self.task_id,
            ),
        )
        silence_s = min(self._state.settings.keepalive_s, self._start_s)
        self._events = subscription.events(1, silence_s)

    async def first_event(self) -> Event | None:
        """Wait for the start, before any header is sent. None: keep the stream open while waiting on.

        Raises: RequestError 503 when nothing was free in time, or what ended the task before it started.
        """
        began = time.monotonic()
        while True:
            event = await anext(self._events)
            if event is not None:
                if event.type in events.FINAL_STATES and event.type != events.FINAL[TaskState.COMPLETED]:
                    await self._raise_for(event)
                return event
            if time.monotonic() - began >= self._start_s - 0.05:
                if await give_up_task(self._state, self.task_id, Failure.NOT_STARTED_IN_TIME):
                    rule = RULES[Failure.NOT_STARTED_IN_TIME]
                    raise overloaded(rule.message, Failure.NOT_STARTED_IN_TIME, _RETRY_AFTER_S)
                began = time.monotonic() + self._limit_s  # claimed just now
            elif self._body.stream:
                return None

    async def _timed(self, first: Event | None) -> AsyncIterator[Event | None]:
        """The events, the task being cancelled once the time to finish ran out."""
        deadline = time.monotonic() + self._limit_s + (self._start_s if first is None else 0)
        yield first
        async for event in self._events:
            if time.monotonic() > deadline and not self._late:
                self._late = True
                await self.cancel()
            yield event

    async def answer(self, first: Event | None) -> bytes:
        """Wait for the whole answer. Raises: RequestError for every other end."""
        async for event in self._timed(first):
            if event is None or event.type not in events.FINAL_STATES:
                continue
            if event.type != events.FINAL[TaskState.COMPLETED]:
                await self._raise_for(event)
            return await self._response()
        raise AssertionError("a task's events end with a final one")

    async def _response(self) -> bytes:
        try:
            response = await self._state.streams.get_result(self.task_id)
        except RedisError:
            response = None
        response = response or await read_response(self._state.database, self.task_id)
        if response is None:
            raise RequestError(500, "The answer is not stored.", "internal_error")
        return response.encode()

    async def _final(self, event: Event) -> dict[str, Any]:
        if event.data:
            return dict(orjson.loads(event.data))
        task = await look_up(self._state.database, self._access.caller.tenant_id, self.task_id)
        assert task is not None
        return {
            "status": task.state,
            "usage": None,
            "error": events.failure_object(task.failure, task.failure_message),
        }

    async def _raise_for(self, event: Event) -> None:
        raise self._error_of(await self._final(event))

    def _error_of(self, final: dict[str, Any]) -> RequestError:
        error = final.get("error")
        if self._late or final["status"] == TaskState.INCOMPLETE:
            return RequestError(
                504,
                f"Not finished within {self._limit_s:g} s. Submit it as a task to wait longer.",
                "not_finished_in_time",
                headers={"x-should-retry": "false"},
            )
        if error is None:
            return RequestError(
                409,
                f"The task was {final['status']}.",
                f"task_{final['status']}",
                headers={"x-should-retry": "false"},
            )
        return RequestError(RULES[Failure(error["code"])].http_status, error["message"], error["code"])

    async def frames(self, first: Event | None) -> AsyncIterator[bytes]:
        """The chunks of a streamed answer; an end that is no completion is an error frame, never silence."""
        options = self._body.stream_options
        include_usage = bool(options and options.include_usage)
        running_usage = bool(options and options.continuous_usage_stats)
        encoder = ChunkEncoder(
            task_id=self.task_id,
            created=created_ms(self.task_id) // 1000,
            model=self._body.model,
            include_usage=include_usage,
        )
        opened, newest = False, b""
        try:
            async for event in self._timed(first):
                if event is None:
                    yield KEEPALIVE
                elif event.type == events.DELTA:
                    frame = encoder.delta(event.data, _running_usage(event.data) if running_usage else None)
                    # the role goes with the first text, so that time to first token means what it says
                    yield frame if opened else encoder.opening(self._body.n or 1) + frame
                    opened, newest = True, event.data
                elif event.type == events.RESTARTED and opened:
                    # what was sent can't be taken back on this route
                    yield _error_frame(
                        RequestError(503, "The answer had to be started again; ask again.", "restarted")
                    )
                    await self.cancel()
                    return
                elif event.type in events.FINAL_STATES:
                    final = await self._final(event)
                    if final["status"] != TaskState.COMPLETED:
                        yield _error_frame(self._error_of(final))
                        return
                    if not event.data and not await self._is_whole(newest):
                        message = f"The end of the answer was lost on its way; it is in task {self.task_id}."
                        yield _error_frame(RequestError(503, message, "stream_lost"))
                        return
                    if include_usage:
                        usage = final["usage"] or orjson.loads(await self._response())["usage"]
                        yield encoder.usage(orjson.dumps(usage))
                    yield DONE
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must not take it for the end
            log.warning("stream_broken", task_id=self.task_id, error=f"{type(error).__name__}: {error}")
            yield _error_frame(_broken(error))

    async def _is_whole(self, newest: bytes) -> bool:
        """Say whether the deltas up to `newest` are the whole answer, whose end the stream did not tell."""
        sent = orjson.loads(newest)["tokens"][1] if newest else 0
        return bool(sent >= orjson.loads(await self._response())["usage"]["completion_tokens"])

    def finisher(self, stack: AsyncExitStack) -> Any:
        """Return what ends a stream: an early leaver's task stops."""

        async def finish(left_early: bool) -> None:
            if left_early:
                await self.cancel()
            await stack.aclose()

        return finish

    async def cancel(self) -> None:
        """Stop the task: nobody waits for it. Not undone by the caller's own cancellation."""
        await asyncio.shield(cancel_task(self._state, self._access.caller.tenant_id, self.task_id))


def _running_usage(data: bytes) -> bytes:
    prompt, output = orjson.loads(data)["tokens"]
    return orjson.dumps(
        {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    )


def _broken(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if is_away(error):
        return overloaded("A store is away; ask again.", "store_unavailable", _RETRY_AFTER_S)
    return RequestError(500, "Internal error.", "internal_error")


def _error_frame(error: RequestError) -> bytes:
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"
