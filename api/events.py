"""/v1/tasks/{id}/events: a task's stream, live and resumable from any cursor on any API process."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from redis.exceptions import RedisError

from api.auth import Caller
from api.live import Subscription
from api.sse import EventStream
from api.state import ApiState, state_of
from api.tasks import find_task
from core.states import FINAL
from schemas import events
from schemas.chunks import KEEPALIVE
from schemas.errors import RequestError, overloaded
from services.look_up import look_up
from storage.records import Task
from storage.streams import Event

router = APIRouter(tags=["tasks"])


@router.get("/v1/tasks/{task_id}/events")
async def follow(
    request: Request, access: Caller, task_id: str, starting_after: str | None = None
) -> Response:
    """Stream the events above the cursor, then those to come, up to the final one."""
    state = state_of(request)
    cursor = _cursor(request.headers.get("last-event-id") or starting_after)
    task = await find_task(state, access, task_id)
    stack = AsyncExitStack()
    try:
        subscription = await stack.enter_async_context(state.live.subscription(task_id))
        if not await has_more(state, task, cursor):
            await stack.aclose()
            return Response(status_code=204)
    except RedisError as error:
        await stack.aclose()
        raise overloaded("Streams are not available; poll the task.", "streams_unavailable", 5) from error
    except BaseException:
        await stack.aclose()
        raise

    async def finish(left_early: bool) -> None:
        await stack.aclose()

    return EventStream(_frames(state, task, subscription, cursor), finish=finish)


def _cursor(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise RequestError(
            400, "The cursor is an event's sequence number.", "invalid_value", "starting_after"
        )
    return int(text)


async def has_more(state: ApiState, task: Task, cursor: int) -> bool:
    """Say whether events above the cursor exist or will. Raises: RequestError 410 when some are lost."""
    gone = RequestError(
        410, "The events after this cursor are no longer kept; read the task.", "events_expired"
    )
    newest = await state.streams.last(task.id)
    if newest is None:
        if task.state in FINAL or cursor > 1:
            raise gone
        return True
    if newest.sequence <= cursor:
        if newest.sequence < cursor and task.state not in FINAL:
            raise gone  # Redis lost the stream that the cursor is of
        return newest.sequence == cursor and newest.type not in events.FINAL_STATES
    stored = await state.streams.first_after(task.id, cursor)
    if stored is not None and stored.sequence > max(cursor, 1) + 1:
        raise gone
    return True


async def _frames(
    state: ApiState, task: Task, subscription: Subscription, cursor: int
) -> AsyncIterator[bytes]:
    newest = b""
    if cursor < 1:
        yield _frame(Event(1, events.QUEUED, orjson.dumps({"lane": task.lane.queue})))
    async for event in subscription.events(max(cursor, 1), state.settings.keepalive_s):
        if event is None:
            yield KEEPALIVE
        elif event.data:
            if event.type == events.DELTA:
                newest = event.data
            yield _frame(event)
            if event.type in events.FINAL_STATES:
                state.note_delivered(task)
        else:
            ended = await look_up(state.database, task.tenant_id, task.id)
            # Text that was lost with its worker is in the task only: a final event would say that all is here.
            if ended is not None and (
                ended.usage is None or events.is_whole(newest, ended.usage.output_tokens)
            ):
                yield _frame(Event(event.sequence, event.type, final_data_of(ended)))


def final_data_of(task: Task) -> bytes:
    """Build the final event's data from the row."""
    return events.final_data(
        task.state,
        finish_reason=task.finish_reason,
        usage=task.usage,
        failure=task.failure,
        failure_message=task.failure_message,
    )


def _frame(event: Event) -> bytes:
    head = f'id: {event.sequence}\nevent: {event.type}\ndata: {{"sequence":{event.sequence},"type":"{event.type}",'
    return head.encode() + event.data[1:] + b"\n\n"
