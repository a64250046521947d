"""From a validated request to an accepted task: what every submitting route does."""

import asyncio
from dataclasses import dataclass

import orjson
import structlog

from api.state import ApiState
from core.lanes import Lane, Priority
from core.lengths import ContextLengthExceededError, Lengths, fit_lengths
from runtime.chat_template import TemplateError
from schemas.chat import ChatCompletionRequest, engine_body
from schemas.errors import RequestError, overloaded
from services.authenticate import Access
from services.register import new_id
from services.submit import IdempotencyKey, KeyReusedError, submit
from storage.outbox import Outgoing
from storage.records import Model, NewTask, Task

log = structlog.get_logger()
_LARGE_CHARACTERS = 20_000  # counted off the event loop: about 5 ms


@dataclass(frozen=True, slots=True)
class Accepted:
    """A task that is ours now; `task` is None when an idempotency key named an earlier one."""

    task_id: str
    task: Task | None


def find_model(access: Access, name: str, param: str) -> Model:
    """Return a granted model. Raises: RequestError 404, the same for unknown and not granted."""
    model = access.models.get(name)
    if model is None:
        raise RequestError(404, f"The model {name!r} does not exist.", "model_not_found", param)
    return model


async def measure(
    state: ApiState, model: Model, request: ChatCompletionRequest, body: dict[str, object], within: str
) -> Lengths:
    """Count the prompt and fix the output's maximum. Raises: RequestError 400."""
    try:
        tokenizer = await state.tokenizers.get(model)
    except (OSError, ValueError) as error:
        log.error("model_folder_unusable", model=model.name, error=str(error))
        raise overloaded(f"The model {model.name!r} can't be read.", "model_unavailable", 30) from error
    try:
        if len(str(body["messages"])) > _LARGE_CHARACTERS:
            prompt_tokens = await asyncio.to_thread(tokenizer.count_chat, body)
        else:
            prompt_tokens = tokenizer.count_chat(body)
    except TemplateError as error:
        raise RequestError(
            400, f"The chat template refused the messages: {error}", "invalid_messages", within + "messages"
        ) from error
    asked = request.asked_output_tokens
    try:
        if asked is None and model.default_max_tokens is not None:
            room = max(1, model.max_model_len - prompt_tokens)
            asked = min(model.default_max_tokens, room)
        lengths = fit_lengths(prompt_tokens, asked, model.max_model_len)
    except ContextLengthExceededError as error:
        # the prompt alone may fit: then the output asked for is what is too long
        field = "messages" if prompt_tokens >= model.max_model_len or asked is None else _asked_by(request)
        raise RequestError(400, str(error), "context_length_exceeded", within + field) from error
    if (request.min_tokens or 0) > lengths.max_output_tokens:
        raise RequestError(
            400,
            f"Invalid min_tokens: there is room for {lengths.max_output_tokens} output tokens.",
            "invalid_value",
            within + "min_tokens",
        )
    return lengths


def _encode(body: dict[str, object]) -> str:
    try:
        return orjson.dumps(body).decode()
    except TypeError as error:  # orjson reads deeper nesting (1024) than it writes (254)
        raise RequestError(400, "The body is nested too deeply.", "invalid_json") from error


def _asked_by(request: ChatCompletionRequest) -> str:
    return "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"


async def accept(
    state: ApiState,
    access: Access,
    request: ChatCompletionRequest,
    *,
    url: str,
    priority: Priority,
    deadline_s: float,
    metadata: dict[str, str] | None = None,
    idempotency: IdempotencyKey | None = None,
    task_id: str | None = None,
    within: str = "",
) -> Accepted:
    """Admit, store and publish a task. Raises: RequestError, and then nothing was stored."""
    model = find_model(access, request.model, within + "model")
    body = engine_body(request)
    encoded = _encode(body)
    lengths = await measure(state, model, request, body, within)
    lane = Lane(model.name, model.bounds.classify(lengths.total_tokens), priority)
    if await state.backlog.of(lane) >= state.settings.max_queued_tasks:
        raise overloaded(f"The lane {lane.queue} is full.", "lane_full", 30)
    if await state.memory.full():
        raise overloaded("A store is nearly out of memory.", "store_full", 10)
    new = NewTask(
        id=task_id or new_id("task"),
        caller=access.caller,
        lane=lane,
        url=url,
        request=encoded,
        prompt_tokens=lengths.prompt_tokens,
        max_output_tokens=lengths.max_output_tokens,
        deadline_s=deadline_s,
        max_attempts=state.settings.max_attempts,
        metadata=metadata or {},
    )
    try:
        accepted = await submit(state.database, new, idempotency)
    except KeyReusedError as error:
        raise RequestError(
            422, "This Idempotency-Key was used with another body.", "idempotency_key_reused"
        ) from error
    if isinstance(accepted, str):
        return Accepted(accepted, None)
    state.publisher.put(Outgoing(new.id, lane))
    return Accepted(new.id, accepted)
