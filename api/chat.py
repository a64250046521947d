"""/v1/chat/completions: a synchronous call that speaks chat completions."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import orjson
import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.auth import Caller
from api.body import read_json
from api.call import Call, broken
from api.sse import ClientGoneError, EventStream, unless_gone
from api.state import ApiState, state_of
from core.ids import created_ms
from core.states import TaskState
from schemas import events
from schemas.chat import ChatCompletionRequest
from schemas.completion import DONE, KEEPALIVE, ChunkEncoder
from schemas.errors import RequestError
from schemas.requests import validate
from services.authenticate import Access
from storage.streams import Event

router = APIRouter(tags=["openai"])
log = structlog.get_logger()
URL = "/v1/chat/completions"


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
        await call.begin(stack, body, call.terms(URL))
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


class _Call(Call):
    """One chat completion and its task."""

    def __init__(self, state: ApiState, access: Access, body: ChatCompletionRequest) -> None:
        super().__init__(state, access, streamed=bool(body.stream))
        self._body = body

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
            async for event in self.events(first):
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
                    final = await self.final(event)
                    if final["status"] != TaskState.COMPLETED:
                        yield _error_frame(self.error_of(final))
                        return
                    if not event.data and not await self._is_whole(newest):
                        message = f"The end of the answer was lost on its way; it is in task {self.task_id}."
                        yield _error_frame(RequestError(503, message, "stream_lost"))
                        return
                    if include_usage:
                        usage = final["usage"] or orjson.loads(await self.stored_answer())["usage"]
                        yield encoder.usage(orjson.dumps(usage))
                    yield DONE
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must not take it for the end
            log.warning("stream_broken", task_id=self.task_id, error=f"{type(error).__name__}: {error}")
            yield _error_frame(broken(error))

    async def _is_whole(self, newest: bytes) -> bool:
        """Say whether the deltas up to `newest` are the whole answer, whose end the stream did not tell."""
        sent = orjson.loads(newest)["tokens"][1] if newest else 0
        return bool(sent >= orjson.loads(await self.stored_answer())["usage"]["completion_tokens"])


def _running_usage(data: bytes) -> bytes:
    prompt, output = orjson.loads(data)["tokens"]
    return orjson.dumps(
        {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    )


def _error_frame(error: RequestError) -> bytes:
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"
