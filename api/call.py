"""A synchronous call: a task whose caller waits for it, whichever route it came by."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import orjson
from redis.exceptions import RedisError

from api.accept import accept
from api.ending import cancel_task, give_up_task
from api.live import Subscription
from api.state import ApiState
from core.failures import RULES, Failure
from core.lanes import Priority
from core.states import TaskState
from runtime.prepare import Terms
from schemas import events
from schemas.errors import RequestError, overloaded
from schemas.generation import Generation
from services.authenticate import Access
from services.look_up import look_up, read_response
from services.new_id import new_id
from services.once import Earlier, IdempotencyKey
from storage.errors import is_away
from storage.records import NewResponse, Task
from storage.streams import Event

RETRY_AFTER_S = 5.0


class Call:
    """One synchronous call and its task. `streamed`: the caller reads a stream, and gets longer."""

    def __init__(self, state: ApiState, access: Access, *, streamed: bool) -> None:
        self.task_id = new_id("task")
        self._state, self._access, self._streamed = state, access, streamed
        self._began = time.monotonic()  # the caller has waited since: accepting takes time too
        self._start_s = state.settings.sync_start_s
        self._limit_s = state.settings.sync_stream_s if streamed else state.settings.sync_finish_s
        self._events: AsyncIterator[Event | None]
        self._late = False  # the time to finish ran out and the task was told to stop

    def terms(
        self, url: str, *, metadata: dict[str, str] | None = None, response: NewResponse | None = None
    ) -> Terms:
        """How the call's task is to be run."""
        return Terms(
            url=url,
            priority=Priority.INTERACTIVE,
            deadline_s=self._start_s + self._limit_s,
            max_attempts=self._state.settings.max_attempts,
            metadata=metadata or {},
            response=response,
            task_id=self.task_id,
        )

    async def begin(
        self,
        stack: AsyncExitStack,
        request: Generation,
        terms: Terms,
        *,
        idempotency: IdempotencyKey | None = None,
        answer: Callable[[Task], Earlier] | None = None,
    ) -> Task | Earlier:
        """Subscribe, then accept: no event is missed; see `accept`. Raises: RequestError."""
        terms = self._limit(request.model, terms)
        try:
            subscription: Subscription = await stack.enter_async_context(
                self._state.live.subscription(self.task_id)
            )
        except RedisError as error:
            raise overloaded(
                "Synchronous calls are not available now; submit a task.", "streams_unavailable", 5
            ) from error
        accepted = await accept(
            self._state, self._access, request, terms, idempotency=idempotency, answer=answer
        )
        if isinstance(accepted, Task):
            # with the call all ends that it could ask for
            stack.callback(self._state.note_delivered, accepted)
        silence_s = min(self._state.settings.keepalive_s, max(0.05, self._left_s()))
        self._events = subscription.events(1, silence_s)
        return accepted

    def _limit(self, name: str, terms: Terms) -> Terms:
        """Take over the model's own limits, where it has some."""
        model = self._access.models.get(name)
        if model is not None:
            limit_s = model.sync_stream_s if self._streamed else model.sync_finish_s
            self._start_s = model.sync_start_s or self._start_s
            self._limit_s = limit_s or self._limit_s
        return replace(
            terms, deadline_s=self._start_s + self._limit_s, start_within_s=max(0.0, self._left_s())
        )

    def _left_s(self) -> float:
        """What is left of the time to start."""
        return self._began + self._start_s - time.monotonic()

    async def first_event(self) -> Event | None:
        """Wait for the start, before any header is sent. None: keep the stream open while waiting on.

        Raises: RequestError 503 when nothing was free in time, or what ended the task before it started.
        """
        claimed = False
        while True:
            event = await anext(self._events)
            if event is not None:
                if event.type in events.FINAL_STATES and event.type != events.FINAL[TaskState.COMPLETED]:
                    raise self.error_of(await self.final(event))
                return event
            if not claimed and self._left_s() <= 0.05:
                if await give_up_task(self._state, self.task_id, Failure.NOT_STARTED_IN_TIME):
                    rule = RULES[Failure.NOT_STARTED_IN_TIME]
                    raise overloaded(rule.message, Failure.NOT_STARTED_IN_TIME, RETRY_AFTER_S)
                claimed = True  # just now
            elif self._streamed:
                return None

    async def events(self, first: Event | None) -> AsyncIterator[Event | None]:
        """The events, the task being cancelled once the time to finish ran out."""
        deadline = time.monotonic() + self._limit_s + (self._start_s if first is None else 0)
        yield first
        async for event in self._events:
            if time.monotonic() > deadline and not self._late:
                self._late = True
                await self.cancel()
            yield event

    async def ended(self, first: Event | None) -> Event:
        """Wait for the final event."""
        async for event in self.events(first):
            if event is not None and event.type in events.FINAL_STATES:
                return event
        raise AssertionError("a task's events end with a final one")

    async def answer(self, first: Event | None) -> bytes:
        """Wait for the whole answer. Raises: RequestError for every other end."""
        event = await self.ended(first)
        if event.type != events.FINAL[TaskState.COMPLETED]:
            raise self.error_of(await self.final(event))
        return await self.stored_answer()

    async def stored_answer(self) -> bytes:
        """Read the answer of the completed task. Raises: RequestError 500."""
        try:
            response = await self._state.streams.get_result(self.task_id)
        except RedisError:
            response = None
        response = response or await read_response(self._state.database, self.task_id)
        if response is None:
            raise RequestError(500, "The answer is not stored.", "internal_error")
        return response.encode()

    async def final(self, event: Event) -> dict[str, Any]:
        """The data of a final event, from the row where the event was told without."""
        if event.data:
            return dict(orjson.loads(event.data))
        task = await look_up(self._state.database, self._access.caller.tenant_id, self.task_id)
        assert task is not None
        return {
            "status": task.state,
            "usage": None,
            "error": events.failure_object(task.failure, task.failure_message),
        }

    def error_of(self, final: dict[str, Any]) -> RequestError:
        """What the caller of a task that ended so, and not completed, is told."""
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

    def finisher(self, stack: AsyncExitStack) -> Callable[[bool], Awaitable[None]]:
        """Return what ends a stream: an early leaver's task stops."""

        async def finish(left_early: bool) -> None:
            if left_early:
                await self.cancel()
            await stack.aclose()

        return finish

    async def cancel(self) -> None:
        """Stop the task: nobody waits for it. Not undone by the caller's own cancellation."""
        await asyncio.shield(cancel_task(self._state, self._access.caller.tenant_id, self.task_id))


def broken(error: Exception) -> RequestError:
    """What the reader of a stream is told when it can't go on."""
    if isinstance(error, RequestError):
        return error
    if is_away(error):
        return overloaded("A store is away; ask again.", "store_unavailable", RETRY_AFTER_S)
    return RequestError(500, "Internal error.", "internal_error")
