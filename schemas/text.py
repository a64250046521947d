"""POST /v1/completions: text that goes on after a prompt, or after each of several.

Source: OpenAI's API reference (legacy completions) and vLLM's CompletionRequest.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from schemas.generation import IGNORED, MAX_CHOICES, Generation
from schemas.strict import TokenId, clash

_DEFAULT_TOKENS = 16
Tokens = Annotated[list[TokenId], Field(min_length=1)]
Prompts = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
TokenPrompts = Annotated[list[Tokens], Field(min_length=1, max_length=MAX_CHOICES)]


def _one_of_four(prompt: Any, shapes: ValidatorFunctionWrapHandler) -> Any:
    try:
        return shapes(prompt)
    except ValidationError:  # four findings, one for each shape, say less than this
        raise PydanticCustomError(
            "prompt",
            "must be a string, a list of token ids, or a list of either with at most {most}, none empty",
            {"most": MAX_CHOICES},
        ) from None


class CompletionRequest(Generation):
    """The body of a text completion."""

    url: ClassVar[str] = "/v1/completions"
    prompt_field: ClassVar[str] = "prompt"
    ignored: ClassVar[frozenset[str]] = IGNORED | {"echo", "best_of"}

    prompt: Annotated[str | Tokens | Prompts | TokenPrompts, WrapValidator(_one_of_four)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None  # n: nothing is left out
    echo: Literal[False] | None = None  # the caller has its prompt

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.refuse_clashes()
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise clash("best_of", "is not supported: ask for n choices and choose")
        if self.choices > MAX_CHOICES:
            raise clash("n", f"times the number of prompts is at most {MAX_CHOICES}")
        return self

    @property
    def asked_output_tokens(self) -> int:
        """The caller's maximum for each choice."""
        return _DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one or more."""
        return prompts_of(self.prompt)

    @property
    def choices(self) -> int:
        """One answer a prompt and each of its `n`."""
        return len(self.prompts) * (self.n or 1)


def prompts_of(prompt: str | list[int] | list[str] | list[list[int]]) -> list[str] | list[list[int]]:
    """List what a `prompt` field holds, in all four of its shapes."""
    if isinstance(prompt, str):
        return [prompt]
    return [prompt] if isinstance(prompt[0], int) else prompt
