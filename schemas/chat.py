"""POST /v1/chat/completions: what is honoured, what is accepted without effect, and nothing else.

Strict: a value of a wrong type is refused, never coerced; such a value would hang the engine without an error.
Every optional field takes null, as the official clients send it.

Source: OpenAI's API reference and vLLM's ChatCompletionRequest.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

INT64_MAX = 2**63 - 1


class Strict(BaseModel):
    """Base of request bodies: no unknown field, no coercion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def clash(field: str, what: str) -> PydanticCustomError:
    """Make the error of a field that does not go with another one: its name is kept for the response."""
    return PydanticCustomError("clash", "{field} {what}", {"field": field, "what": what})


class TextPart(Strict):
    """A piece of text; the only content part that is served."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)] | None = None
    name: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _content_present(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        return self


class StreamOptions(Strict):
    """What a stream tells beside the text."""

    include_usage: bool | None = None  # one last chunk with usage and no choices
    continuous_usage_stats: bool | None = None  # usage so far on every chunk (vLLM)


class JsonSchema(Strict):
    """The schema of a structured answer."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """Free text, any JSON, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_present(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema, and is needed there")
        return self


Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class Sampling(Strict):
    """How tokens are chosen and when generation ends; shared by the text routes."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX)] | None = None
    stop: NonEmpty | Annotated[list[NonEmpty], Field(max_length=4)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")],
                Annotated[float, Field(ge=-100, le=100)],
            ],
            Field(max_length=1024),
        ]
        | None
    ) = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None


class ChatCompletionRequest(Sampling):
    """The body of a chat completion."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Accepted because clients send them; they change nothing here.
    user: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    verbosity: str | None = None
    prediction: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        asked = self.asked_output_tokens
        if self.stream_options is not None and not self.stream:
            raise clash("stream_options", "needs stream")
        if self.top_logprobs is not None and not self.logprobs:
            raise clash("top_logprobs", "needs logprobs")
        if (self.n or 1) > 1 and self.temperature == 0:
            raise clash("n", "above 1 needs a temperature above 0: greedy choices would be equal")
        if self.min_tokens is not None and asked is not None and self.min_tokens > asked:
            raise clash("min_tokens", "is above the maximum of output tokens")
        return self

    @property
    def asked_output_tokens(self) -> int | None:
        """The caller's maximum; the newer name wins."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


IGNORED = frozenset(
    {
        "user",
        "safety_identifier",
        "store",
        "metadata",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "verbosity",
        "prediction",
        "stream",
        "stream_options",
    }
)


def engine_body(request: ChatCompletionRequest) -> dict[str, Any]:
    """Return what the engine needs of a body: delivery options and fields without effect left out."""
    return request.model_dump(exclude_none=True, by_alias=True, exclude=set(IGNORED))
