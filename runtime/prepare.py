"""From a validated request to the task it would be: nothing is stored, and nothing refused later for what it is.

The API's routes use it and so does whoever makes tasks of a file's lines.
"""

from dataclasses import dataclass, field

import orjson
import structlog

from core.lanes import Lane, Priority
from core.lengths import ContextLengthExceededError, Lengths, fit_lengths
from core.prefix import prefix_key
from runtime.granted import refuse_beyond_grant
from runtime.prompts import count_prompts
from runtime.tokenizers import Tokenizers
from schemas.chat import ChatCompletionRequest
from schemas.errors import RequestError, overloaded
from schemas.generation import Generation
from services.authenticate import Access
from services.new_id import new_id
from storage.records import Model, NewResponse, NewTask

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request is to be run, beside what it asks for."""

    url: str  # the OpenAI route it belongs to
    priority: Priority
    deadline_s: float  # from acceptance
    max_attempts: int
    store: bool = True  # False: no bodies after delivery
    metadata: dict[str, str] = field(default_factory=dict)
    webhook: str | None = None  # the URL that is told of the end
    response: NewResponse | None = None  # what else it is
    task_id: str | None = None  # made here where the caller needs none beforehand
    start_within_s: float | None = None  # somebody waits: refused where it can't start by then


async def prepare(
    tokenizers: Tokenizers, access: Access, request: Generation, terms: Terms, within: str = ""
) -> NewTask:
    """Find the model, count the prompt, fix lengths and lane. `within` names the request's place in the body.

    Raises: RequestError naming the field.
    """
    model = find_model(access, request.model, within + "model")
    _refuse_unserved(model, request, within)
    body = request.engine_body()
    encoded = _encode(body)
    lengths = await _measure(tokenizers, model, request, body, within)
    refuse_beyond_grant(
        model,
        url=terms.url,
        priority=terms.priority,
        lengths=lengths,
        within=within,
        prompt_field=request.prompt_field,
        output_field=request.output_field,
    )
    lane = Lane(model.name, model.bounds.classify(lengths.total_tokens), terms.priority)
    return NewTask(
        id=terms.task_id or new_id("task"),
        caller=access.caller,
        lane=lane,
        url=terms.url,
        request=encoded,
        prompt_tokens=lengths.prompt_tokens,
        max_output_tokens=lengths.max_output_tokens,
        deadline_s=terms.deadline_s,
        max_attempts=terms.max_attempts,
        metadata=terms.metadata,
        webhook=terms.webhook,
        response=terms.response,
        store=terms.store and request.stored,
        max_open_tasks=model.limits.max_open_tasks,
        choices=request.choices,
        hold_usd_micros=access.hold_of(
            lane, lengths.prompt_tokens, lengths.max_output_tokens * request.choices
        ),
        prefix_key=prefix_key(body) if terms.priority is Priority.BATCH else None,
    )


def find_model(access: Access, name: str, param: str) -> Model:
    """Return a granted model. Raises: RequestError 404, the same for unknown and not granted."""
    model = access.models.get(name)
    if model is None:
        raise RequestError(404, f"The model {name!r} does not exist.", "model_not_found", param)
    return model


def _refuse_unserved(model: Model, request: Generation, within: str) -> None:
    """Refuse what the model has no parser for. Raises: RequestError 400."""
    if not isinstance(request, ChatCompletionRequest):
        return
    needs = (
        ("tools", request.tools, model.tool_parser, "tool"),
        ("reasoning_effort", request.reasoning_effort, model.reasoning_parser, "reasoning"),
    )
    for name, asked, parser, kind in needs:
        if asked is not None and parser is None:
            message = f"{within}{name} is not supported by {model.name!r}: it has no {kind} parser."
            raise RequestError(400, message, "unsupported_parameter", within + name)


async def _measure(
    tokenizers: Tokenizers,
    model: Model,
    request: Generation,
    body: dict[str, object],
    within: str,
) -> Lengths:
    """Count the prompts, together, and fix the maximum of each output. Raises: RequestError 400, 503."""
    try:
        tokenizer = await tokenizers.get(model)
    except (OSError, ValueError) as error:
        log.error("model_folder_unusable", model=model.name, error=str(error))
        raise overloaded(f"The model {model.name!r} can't be read.", "model_unavailable", 30) from error
    counts = await count_prompts(tokenizer, request, body, within)
    longest = max(counts)
    asked = request.asked_output_tokens
    try:
        if asked is None and model.default_max_tokens is not None:
            room = max(1, model.max_model_len - longest)
            asked = min(model.default_max_tokens, room)
        lengths = fit_lengths(longest, asked, model.max_model_len)
    except ContextLengthExceededError as error:
        # the prompt alone may fit: then the output asked for is what is too long
        alone = longest >= model.max_model_len or asked is None
        field = request.prompt_field if alone else request.output_field
        raise RequestError(400, str(error), "context_length_exceeded", within + field) from error
    if (request.min_tokens or 0) > lengths.max_output_tokens:
        raise RequestError(
            400,
            f"Invalid min_tokens: there is room for {lengths.max_output_tokens} output tokens.",
            "invalid_value",
            within + "min_tokens",
        )
    return Lengths(sum(counts), lengths.max_output_tokens)


def _encode(body: dict[str, object]) -> str:
    try:
        return orjson.dumps(body).decode()
    except TypeError as error:  # orjson reads deeper nesting (1024) than it writes (254)
        raise RequestError(400, "The body is nested too deeply.", "invalid_json") from error
