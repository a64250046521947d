"""What a tenant may ask of a model granted to it.

Units: `*_tokens` tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from core.lanes import Priority


@dataclass(frozen=True, slots=True)
class GrantLimits:
    """Limits of one tenant on one model; None: none."""

    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    max_open_tasks: int | None = None  # queued and running at the same time
    priorities: tuple[Priority, ...] | None = None
    endpoints: tuple[str, ...] | None = None  # routes such as /v1/chat/completions


NO_LIMITS = GrantLimits()


@dataclass(frozen=True, slots=True)
class LimitBreach:
    """Which limit a request goes beyond; `message` names it and its value."""

    limit: str  # name of the field of GrantLimits
    message: str


def find_breach(
    limits: GrantLimits, *, url: str, priority: Priority, prompt_tokens: int, max_output_tokens: int
) -> LimitBreach | None:
    """Return the first limit that a request goes beyond. `max_open_tasks` is for who counts tasks."""
    if limits.endpoints is not None and url not in limits.endpoints:
        return LimitBreach("endpoints", f"{url} is not among those granted: {_list(limits.endpoints)}.")
    if limits.priorities is not None and priority not in limits.priorities:
        return LimitBreach(
            "priorities", f"{priority} is not among those granted: {_list(limits.priorities)}."
        )
    if limits.max_prompt_tokens is not None and prompt_tokens > limits.max_prompt_tokens:
        return LimitBreach(
            "max_prompt_tokens",
            f"the prompt has {prompt_tokens} tokens, and at most {limits.max_prompt_tokens} are granted.",
        )
    if limits.max_output_tokens is not None and max_output_tokens > limits.max_output_tokens:
        return LimitBreach(
            "max_output_tokens",
            f"{max_output_tokens} output tokens are asked for, and at most {limits.max_output_tokens} are granted.",
        )
    return None


def _list(values: Sequence[str]) -> str:
    return ", ".join(values)
