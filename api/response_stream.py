"""A response's stream: the task's events folded from their beginning, sent from the cursor on."""

from collections.abc import AsyncIterator, Iterator

import orjson
import structlog

from api.call import broken
from api.response_object import as_accepted, render, response_object
from api.state import ApiState
from schemas import events
from schemas.chunks import KEEPALIVE
from schemas.errors import RequestError
from schemas.response_stream import ResponseEvents, Said
from services.recall import find_response
from storage.responses import Response
from storage.streams import Event

log = structlog.get_logger()


async def frames(
    state: ApiState, response: Response, source: AsyncIterator[Event | None], after: int
) -> AsyncIterator[bytes]:
    """The frames above the cursor (-1: all); `source` are the task's events from its start on."""
    fold = ResponseEvents(response.id)
    shown = response_object(response)
    try:
        for frame in fold.numbered(fold.opened(as_accepted(shown, "queued")), after):
            yield frame
        async for event in source:
            if event is None:
                yield KEEPALIVE
                continue
            said = await _end(state, response, fold) if event.type in events.FINAL_STATES else None
            for frame in fold.numbered(said or _said(fold, event, shown), after):
                yield frame
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller must not take it for the end
        log.warning("stream_broken", task_id=response.task.id, error=f"{type(error).__name__}: {error}")
        yield _error_frame(broken(error))


def _said(fold: ResponseEvents, event: Event, shown: dict[str, object]) -> Iterator[Said]:
    if event.type == events.STARTED:
        yield from fold.started(as_accepted(shown, "in_progress"))
    elif event.type == events.RESTARTED:
        yield from fold.restarted()
    elif event.type == events.DELTA:
        for choice in orjson.loads(event.data)["choices"]:
            yield from fold.delta(choice)


async def _end(state: ApiState, response: Response, fold: ResponseEvents) -> Iterator[Said]:
    ended = await find_response(state.database, response.task.tenant_id, response.id, deleted=True)
    if ended is None:
        raise RequestError(410, "The response was deleted.", "response_deleted")
    rendered = await render(state, ended)
    return fold.ended(f"response.{rendered['status']}", rendered)


def _error_frame(error: RequestError) -> bytes:
    data = {"type": "error", **error.body()["error"], "error": error.body()["error"]}
    return b"event: error\ndata: " + orjson.dumps(data) + b"\n\n"
