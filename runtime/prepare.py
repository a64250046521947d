"""From a validated request to the task it would be: nothing is stored, and nothing refused later for what it is.

The API's routes use it and so does whoever makes tasks of a file's lines.
"""

import asyncio
from dataclasses import dataclass, field

import orjson
import structlog

from core.lanes import Lane, Priority
from core.lengths import ContextLengthExceededError, Lengths, fit_lengths
from runtime.chat_template import TemplateError
from runtime.tokenizers import Tokenizers
from schemas.chat import ChatCompletionRequest, engine_body
from schemas.errors import RequestError, overloaded
from services.authenticate import Access
from services.register import new_id
from storage.records import Model, NewResponse, NewTask

log = structlog.get_logger()
_LARGE_CHARACTERS = 20_000  # counted off the event loop: about 5 ms


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request is to be run, beside what it asks for."""

    url: str  # the OpenAI route it belongs to
    priority: Priority
    deadline_s: float  # from acceptance
    max_attempts: int
    metadata: dict[str, str] = field(default_factory=dict)
    response: NewResponse | None = None  # what else it is
    task_id: str | None = None  # made here where the caller needs none beforehand


async def prepare(
    tokenizers: Tokenizers, access: Access, request: ChatCompletionRequest, terms: Terms, within: str = ""
) -> NewTask:
    """Find the model, count the prompt, fix lengths and lane. `within` names the request's place in the body.

    Raises: RequestError naming the field.
    """
    model = find_model(access, request.model, within + "model")
    body = engine_body(request)
    encoded = _encode(body)
    lengths = await _measure(tokenizers, model, request, body, within)
    return NewTask(
        id=terms.task_id or new_id("task"),
        caller=access.caller,
        lane=Lane(model.name, model.bounds.classify(lengths.total_tokens), terms.priority),
        url=terms.url,
        request=encoded,
        prompt_tokens=lengths.prompt_tokens,
        max_output_tokens=lengths.max_output_tokens,
        deadline_s=terms.deadline_s,
        max_attempts=terms.max_attempts,
        metadata=terms.metadata,
        response=terms.response,
    )


def find_model(access: Access, name: str, param: str) -> Model:
    """Return a granted model. Raises: RequestError 404, the same for unknown and not granted."""
    model = access.models.get(name)
    if model is None:
        raise RequestError(404, f"The model {name!r} does not exist.", "model_not_found", param)
    return model


async def _measure(
    tokenizers: Tokenizers,
    model: Model,
    request: ChatCompletionRequest,
    body: dict[str, object],
    within: str,
) -> Lengths:
    """Count the prompt and fix the output's maximum. Raises: RequestError 400, 503."""
    try:
        tokenizer = await tokenizers.get(model)
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
