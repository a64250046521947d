"""Does a request fit its model, and how much may it generate. Units: tokens."""

from dataclasses import dataclass


class ContextLengthExceededError(ValueError):
    """Prompt and asked-for output do not fit the model's context."""

    def __init__(self, prompt_tokens: int, output_tokens: int, context_tokens: int) -> None:
        self.prompt_tokens, self.output_tokens, self.context_tokens = (
            prompt_tokens,
            output_tokens,
            context_tokens,
        )
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens, but the request needs "
            f"{prompt_tokens + output_tokens} ({prompt_tokens} in the prompt, {output_tokens} for the output)."
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts that a request is admitted with."""

    prompt_tokens: int
    max_output_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.max_output_tokens


def fit_lengths(prompt_tokens: int, asked_output_tokens: int | None, context_tokens: int) -> Lengths:
    """Fix a request's lengths; without an asked-for maximum the output may fill the context.

    Raises: ContextLengthExceededError, before the request costs a queue place.
    """
    output_tokens = asked_output_tokens if asked_output_tokens is not None else context_tokens - prompt_tokens
    if prompt_tokens + max(output_tokens, 1) > context_tokens:
        raise ContextLengthExceededError(prompt_tokens, max(output_tokens, 1), context_tokens)
    return Lengths(prompt_tokens, output_tokens)
