"""What the text routes share: a synchronous call, answered whole or as a stream of chunks."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import orjson
import structlog
from fastapi import Request
from fastapi.responses import Response

from api.accept import accept
from api.body import read_json
from api.call import Call, broken
from api.json import JsonResponse
from api.sse import ClientGoneError, EventStream, unless_gone
from api.state import ApiState, state_of
from api.task_object import poll_after_s, task_object
from core.ids import created_ms
from core.lanes import Priority
from core.states import TaskState
from runtime.prepare import Terms
from schemas import events
from schemas.chunks import DONE, KEEPALIVE, ChunkEncoder
from schemas.completion import FORMS
from schemas.errors import RequestError
from schemas.events import is_whole
from schemas.generation import Generation
from schemas.requests import validate
from services.authenticate import Access
from storage.records import Task
from storage.streams import Event

log = structlog.get_logger()


async def answer(request: Request, access: Access, kind: type[Generation]) -> Response:
    """Run the request in the body, of that kind, and answer as it asks. Raises: RequestError."""
    state = state_of(request)
    _, parsed = await read_json(request, state.settings.max_body_bytes)
    body = validate(kind, parsed)
    if "respond-async" in request.headers.get("prefer", "").lower():
        return await _respond_async(state, access, body)
    call = Generating(state, access, body)
    stack = AsyncExitStack()
    try:
        await call.begin(stack, body, call.terms(kind.url))
        first = await unless_gone(request, call.first_event())
        headers = {"X-Headrace-Task-Id": call.task_id}
        if body.stream:
            response: Response = EventStream(call.frames(first), finish=call.finisher(stack), headers=headers)
            stack = AsyncExitStack()  # the response closes it now
        else:
            whole = await unless_gone(request, call.answer(first))
            response = Response(whole, media_type="application/json", headers=headers)
    except ClientGoneError:
        await call.cancel()
        return Response(status_code=499)  # nobody reads it
    finally:
        await stack.aclose()
    return response


async def _respond_async(state: ApiState, access: Access, body: Generation) -> Response:
    """Accept the request as a task to be polled: who prefers so does not wait."""
    if body.stream:
        message = "A task is streamed by its events URL; leave stream out with Prefer: respond-async."
        raise RequestError(400, message, "invalid_value", "stream")
    terms = Terms(
        url=body.url,
        priority=Priority.STANDARD,
        deadline_s=state.settings.task_ttl_s,
        max_attempts=state.settings.max_attempts,
    )
    task = await accept(state, access, body, terms)
    assert isinstance(task, Task)  # no key was given
    headers = {
        "Location": f"/v1/tasks/{task.id}",
        "Preference-Applied": "respond-async",
        "Retry-After": str(poll_after_s(task)),
        "X-Headrace-Task-Id": task.id,
    }
    return JsonResponse(task_object(task), 202, headers)


class Generating(Call):
    """One call for text and its task."""

    def __init__(self, state: ApiState, access: Access, body: Generation) -> None:
        super().__init__(state, access, streamed=bool(body.stream))
        self._body = body

    async def frames(self, first: Event | None) -> AsyncIterator[bytes]:
        """The chunks of a streamed answer; an end that is no completion is an error frame, never silence."""
        options = self._body.stream_options
        include_usage = bool(options and options.include_usage)
        running_usage = bool(options and options.continuous_usage_stats)
        encoder = ChunkEncoder(
            FORMS[self._body.url],
            task_id=self.task_id,
            created=created_ms(self.task_id) // 1000,
            model=self._body.model,
            include_usage=include_usage,
        )
        opened, newest = False, b""
        try:
            async for event in self.events(first):
                if event is None:
                    yield KEEPALIVE
                elif event.type == events.DELTA:
                    usage = _running_usage(event.data) if running_usage else None
                    frame = encoder.delta(event.data, usage)
                    # the role goes with the first text, so that time to first token means what it says
                    yield frame if opened else encoder.opening(self._body.choices, usage) + frame
                    opened, newest = True, event.data
                elif event.type == events.RESTARTED and opened:
                    # what was sent can't be taken back on this route
                    yield _error_frame(
                        RequestError(503, "The answer had to be started again; ask again.", "restarted")
                    )
                    await self.cancel()
                    return
                elif event.type in events.FINAL_STATES:
                    final = await self.final(event)
                    if final["status"] != TaskState.COMPLETED:
                        yield _error_frame(self.error_of(final))
                        return
                    if not event.data and await self._lost_text(newest):
                        message = f"The end of the answer was lost on its way; it is in task {self.task_id}."
                        yield _error_frame(RequestError(503, message, "stream_lost"))
                        return
                    if include_usage:
                        whole = final["usage"] or orjson.loads(await self.stored_answer())["usage"]
                        yield encoder.usage(orjson.dumps(whole))
                    yield DONE
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must not take it for the end
            log.warning("stream_broken", task_id=self.task_id, error=f"{type(error).__name__}: {error}")
            yield _error_frame(broken(error))

    async def _lost_text(self, newest: bytes) -> bool:
        """Say whether the deltas up to `newest` lack the end of the answer, which the stream did not tell."""
        usage = orjson.loads(await self.stored_answer())["usage"]
        return not is_whole(newest, usage["completion_tokens"])


def _running_usage(data: bytes) -> bytes:
    prompt, output = orjson.loads(data)["tokens"]
    return orjson.dumps(
        {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    )


def _error_frame(error: RequestError) -> bytes:
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"
