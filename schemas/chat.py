"""POST /v1/chat/completions: what is honoured, what is accepted without effect, and nothing else.

Source: OpenAI's API reference and vLLM's ChatCompletionRequest.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from schemas.generation import IGNORED, Generation
from schemas.strict import Metadata, Strict, clash
from schemas.tools import NamedChoice, ToolCall, ToolChoice, Tools

_OTHER_PARTS = ("image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file")


class TextPart(Strict):
    """A piece of text, or of a refusal; the content parts that are served."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, part: Any) -> Any:
        # before its URL is looked at: nothing is fetched for anybody
        if isinstance(part, dict) and part.get("type") in _OTHER_PARTS:
            raise PydanticCustomError(
                "unsupported_part",
                "content of type {kind} is not supported: only text is",
                {"kind": part["type"]},
            )
        return part

    @model_validator(mode="after")
    def _text_present(self) -> Self:
        if getattr(self, self.type) is None:
            raise ValueError(f"a part of type {self.type} needs {self.type}")
        return self


class Message(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None  # the assistant's
    tool_call_id: str | None = None  # which call a tool's turn answers
    reasoning: str | None = None  # as the answer had it
    reasoning_content: str | None = None  # the same, as other servers call it

    # An answer sent back as it came has these.
    refusal: str | None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None

    @model_validator(mode="after")
    def _belongs_to_role(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise clash("tool_call_id", "belongs to a tool message, and is needed there")
        if self.tool_calls is not None and self.role != "assistant":
            raise clash("tool_calls", "belong to an assistant message")
        return self


class ChatCompletionRequest(Generation):
    """The body of a chat completion."""

    url: ClassVar[str] = "/v1/chat/completions"
    prompt_field: ClassVar[str] = "messages"
    ignored: ClassVar[frozenset[str]] = IGNORED | {
        *("safety_identifier", "store", "metadata", "service_tier", "prompt_cache_key"),
        *("prompt_cache_retention", "verbosity", "prediction"),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Of no effect here.
    safety_identifier: str | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    verbosity: str | None = None
    prediction: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.refuse_clashes()
        if self.top_logprobs is not None and not self.logprobs:
            raise clash("top_logprobs", "needs logprobs")
        for name in ("tool_choice", "parallel_tool_calls"):
            if getattr(self, name) is not None and self.tools is None:
                raise clash(name, "needs tools")
        if isinstance(self.tool_choice, NamedChoice):
            wanted = self.tool_choice.function.name
            if wanted not in [tool.function.name for tool in self.tools or ()]:
                raise clash("tool_choice", f"names {wanted}, which is not one of the tools")
        return self

    @property
    def asked_output_tokens(self) -> int | None:
        """The caller's maximum; the newer name wins."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def output_field(self) -> str:
        """The name that the caller used."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
