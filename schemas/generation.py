"""What the text routes have in common: sampling, delivery, and what admission asks of a request.

Source: OpenAI's API reference and vLLM's SamplingParams.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints, model_validator

from schemas.errors import SERVER_OWNED, UNSUPPORTED
from schemas.strict import INT64_MAX, NonEmpty, Penalty, Probability, Strict, TokenId, clash
from schemas.structured import ResponseFormat, StructuredOutputs

REFUSED = SERVER_OWNED | UNSUPPORTED
MAX_CHOICES = 128  # of one request, over all its prompts


class StreamOptions(Strict):
    """What a stream tells beside the text."""

    include_usage: bool | None = None  # one last chunk with usage and no choices
    continuous_usage_stats: bool | None = None  # usage so far on every chunk (vLLM)
    include_obfuscation: bool | None = None  # padding against listeners; TLS is the edge's: without effect


class Nullable(Strict):
    """A body whose refused fields may be null: clients send that for what they leave out."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, body: Any) -> Any:
        if isinstance(body, dict) and any(body.get(name, body) is None for name in REFUSED):
            return {name: value for name, value in body.items() if value is not None or name not in REFUSED}
        return body


class Generation(Nullable):
    """How tokens are chosen, when generation ends, and how the answer is delivered."""

    url: ClassVar[str]
    prompt_field: ClassVar[str]
    ignored: ClassVar[frozenset[str]]  # accepted because clients send them; they change nothing in the engine

    model: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
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
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Of no effect here.
    user: str | None = None

    @property
    def asked_output_tokens(self) -> int | None:
        """The caller's maximum for each choice; None: as much as there is room for."""
        return self.max_tokens

    @property
    def stored(self) -> bool:
        """Whether prompt and output may be kept once they are delivered."""
        return True

    @property
    def output_field(self) -> str:
        """What the caller calls that maximum."""
        return "max_tokens"

    @property
    def choices(self) -> int:
        """How many answers come back."""
        return self.n or 1

    def refuse_clashes(self) -> None:
        """Refuse fields that don't go together. Raises: PydanticCustomError naming one of them."""
        asked = self.asked_output_tokens
        if self.stream_options is not None and not self.stream:
            raise clash("stream_options", "needs stream")
        if (self.n or 1) > 1 and self.temperature == 0:
            raise clash("n", "above 1 needs a temperature above 0: greedy choices would be equal")
        if self.min_tokens is not None and asked is not None and self.min_tokens > asked:
            raise clash("min_tokens", "is above the maximum of output tokens")
        structured = self.response_format is not None and self.response_format.type != "text"
        if self.structured_outputs is not None and structured:
            raise clash("structured_outputs", "can't go with response_format: there is one form")

    def engine_body(self) -> dict[str, Any]:
        """Return what the engine needs: delivery options and fields without effect left out."""
        return self.model_dump(exclude_none=True, by_alias=True, exclude=set(self.ignored))


IGNORED = frozenset({"user", "stream", "stream_options"})
