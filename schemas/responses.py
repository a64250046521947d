"""POST /v1/responses: what is honoured, what is accepted without effect, and nothing else.

A response is a chat completion seen otherwise: `schemas.response_chat` makes one of it.

Source: OpenAI's API reference (create a model response).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator

from schemas.errors import RequestError, of_validation
from schemas.generation import Nullable
from schemas.strict import Metadata, Strict, clash

URL = "/v1/responses"
LOGPROBS = "message.output_text.logprobs"
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Variant = TypeVar("Variant", bound=BaseModel)


class TextFormat(Strict):
    """Free text, any JSON, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_present(self) -> Self:
        is_schema = self.type == "json_schema"
        for field, value in (("name", self.name), ("schema", self.schema_)):
            if is_schema != (value is not None):
                raise clash(field, "goes with type json_schema, and is needed there")
        return self


class TextConfig(Strict):
    """How the text is to be."""

    format: TextFormat | None = None
    verbosity: str | None = None  # without effect, as in chat completions


class FunctionTool(Strict):
    """A function that the model may ask to be called."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(Strict):
    """The function that must be called."""

    type: Literal["function"]
    name: Name


class Reasoning(Strict):
    """How much the model may think; nothing here sums its thoughts up."""

    effort: str | None = None
    summary: None = None
    generate_summary: None = None


class StreamOptions(Strict):
    """Nothing here pads a stream."""

    include_obfuscation: Literal[False] | None = None


class ResponseCreate(Nullable):
    """The body."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    text: TextConfig | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    truncation: Literal["disabled"] | None = None

    webhook: str | None = None  # Headrace's: the URL that is told of a background response's end

    # vLLM's and chat's; checked as the fields of a chat completion that they become.
    top_k: Any = None
    min_p: Any = None
    seed: Any = None
    stop: Any = None
    stop_token_ids: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    repetition_penalty: Any = None
    logit_bias: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    structured_outputs: Any = None
    chat_template_kwargs: Any = None

    # Accepted because clients send them; they change nothing here.
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.background and self.store is False:
            raise clash("store", "must not be false with background: there would be nothing to poll")
        if self.webhook is not None and not self.background:
            raise clash("webhook", "needs background: who waits is told anyway")
        if self.stream_options is not None and not self.stream:
            raise clash("stream_options", "needs stream")
        if self.top_logprobs is not None and not self.logprobs:
            raise clash("top_logprobs", f"needs include: [{LOGPROBS!r}]")
        return self

    @property
    def logprobs(self) -> bool:
        """Whether the answer lists its log probabilities."""
        return LOGPROBS in (self.include or ())


def check_variants(asked: ResponseCreate) -> None:
    """Check what has many shapes, of which few are served: tools, tool_choice and include. Raises: RequestError."""
    for i, tool in enumerate(asked.tools or ()):
        read_variant({"function": FunctionTool}, tool, f"tools[{i}]")
    if isinstance(asked.tool_choice, dict):
        read_variant({"function": FunctionChoice}, asked.tool_choice, "tool_choice")
    for i, name in enumerate(asked.include or ()):
        if name != LOGPROBS:
            raise unsupported(f"include[{i}]", name)


def read_variant(kinds: Mapping[str, type[Variant]], value: Any, where: str, default: str = "") -> Variant:
    """Read an object whose `type` says what it is. Raises: RequestError naming the type or the field."""
    if not isinstance(value, dict):
        raise RequestError(400, f"Invalid {where}: it must be an object.", "invalid_value", where)
    kind = value.get("type") or default
    if not kind:
        name = f"{where}.type"
        raise RequestError(400, f"Missing required parameter: {name}.", "missing_required_parameter", name)
    if not isinstance(kind, str) or kind not in kinds:
        raise unsupported(f"{where}.type", str(kind))
    try:
        return kinds[kind].model_validate({**value, "type": kind})
    except ValidationError as error:
        raise of_validation(error, where) from error


def unsupported(param: str, what: str) -> RequestError:
    """400: a part of the OpenAI surface that is not served, by its name."""
    return RequestError(400, f"{param}: {what[:64]!r} is not supported.", "unsupported_parameter", param)
