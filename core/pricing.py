"""Cost of a task from the engine's counts. Integer micro-USD throughout; rounding is defined here alone.

Units: prices in micro-USD per million tokens (so 150_000 is $0.15 per million tokens).
"""

from dataclasses import dataclass

_PER = 1_000_000


@dataclass(frozen=True, slots=True)
class Tariff:
    """Prices of a model."""

    prompt_usd_micros: int  # per million prompt tokens not read from the cache
    cached_usd_micros: int  # per million prompt tokens read from the prefix cache
    output_usd_micros: int  # per million output tokens


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole task, all attempts together, each counted once."""

    prompt_tokens: int
    cached_tokens: int  # part of prompt_tokens
    output_tokens: int

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tokens <= self.prompt_tokens or self.output_tokens < 0:
            raise ValueError(f"impossible usage: {self}")


def cost_usd_micros(usage: Usage, tariff: Tariff) -> int:
    """Price a usage; the sum is rounded half up once, so parts never round apart from the whole."""
    total = (
        (usage.prompt_tokens - usage.cached_tokens) * tariff.prompt_usd_micros
        + usage.cached_tokens * tariff.cached_usd_micros
        + usage.output_tokens * tariff.output_usd_micros
    )
    return (total + _PER // 2) // _PER
