"""Cost of a task from the engine's own counts. Integer micro-USD throughout; rounding is defined here alone.

Units: token prices in micro-USD per million tokens (so 150_000 is $0.15 per million tokens), the engine's in
micro-USD per second of engine time. Both have the same divisor: a million tokens, a million microseconds.
"""

from dataclasses import dataclass

_PER = 1_000_000


@dataclass(frozen=True, slots=True)
class Tariff:
    """Prices of a model, for one priority or for all."""

    prompt_usd_micros: int  # per million prompt tokens not read from the cache
    cached_usd_micros: int  # per million prompt tokens read from the prefix cache
    output_usd_micros: int  # per million output tokens
    engine_usd_micros: int = 0  # per second of engine time
    id: int | None = None  # of its row; the ledger names it
    engine_us_per_token: int = 0  # what a hold takes the engine to need; charged is what it did need


FREE = Tariff(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole task, all attempts together, each counted once."""

    prompt_tokens: int
    cached_tokens: int  # part of prompt_tokens
    output_tokens: int

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tokens <= self.prompt_tokens or self.output_tokens < 0:
            raise ValueError(f"impossible usage: {self}")

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


NOTHING = Usage(0, 0, 0)


def cost_usd_micros(usage: Usage, tariff: Tariff, engine_us: int = 0) -> int:
    """Price a usage; the sum is rounded half up once, so parts never round apart from the whole.

    `engine_us`: microseconds of engine time.
    """
    total = (
        (usage.prompt_tokens - usage.cached_tokens) * tariff.prompt_usd_micros
        + usage.cached_tokens * tariff.cached_usd_micros
        + usage.output_tokens * tariff.output_usd_micros
        + engine_us * tariff.engine_usd_micros
    )
    return (total + _PER // 2) // _PER


def hold_usd_micros(prompt_tokens: int, max_output_tokens: int, tariff: Tariff) -> int:
    """The most that a task can cost: the whole prompt at its dearer price, and all the output it may make.

    Of the engine's time only an expectation is known.
    """
    cached = prompt_tokens if tariff.cached_usd_micros > tariff.prompt_usd_micros else 0
    engine_us = (prompt_tokens + max_output_tokens) * tariff.engine_us_per_token
    return cost_usd_micros(Usage(prompt_tokens, cached, max_output_tokens), tariff, engine_us)
