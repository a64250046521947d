"""Bodies of /v1/admin's limits, tariffs, budgets and corrections. Units: micro-USD, seconds since the epoch."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from core.budgets import Period
from core.lanes import Priority
from schemas.admin import ModelVersion
from schemas.strict import Strict, clash

_MOST_RATE = 100_000_000  # a minute
_MOST_USD_MICROS = 10**15
Rate = Annotated[int, Field(ge=1, le=_MOST_RATE)]
Money = Annotated[int, Field(ge=0, le=_MOST_USD_MICROS)]
Moment = Annotated[int, Field(ge=0, le=2**33)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class LimitTerms(Strict):
    """The rates of a tenant, or of one of its keys, or of it on one model."""

    key: Name | None = None  # id, or the first 15 characters
    model: Name | None = None
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None  # prompt and output
    burst_requests: Rate | None = None  # null: a minute's worth
    burst_tokens: Rate | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.key is not None and self.model is not None:
            raise clash("model", "can't be given together with key")
        if self.requests_per_minute is None and self.tokens_per_minute is None:
            raise clash("requests_per_minute", "or tokens_per_minute is needed")
        for unit in ("requests", "tokens"):
            rate, burst = getattr(self, f"{unit}_per_minute"), getattr(self, f"burst_{unit}")
            if rate is None and burst is not None:
                raise clash(f"burst_{unit}", f"needs {unit}_per_minute")
        return self


class LimitPut(LimitTerms):
    """Body of PUT /v1/admin/limits."""

    tenant: Name


class Prices(Strict):
    """Prices of a model. Token prices are per million, the engine's per second."""

    version: ModelVersion | None = None  # null: all that have no price of their own
    priority: Annotated[Priority, Field(strict=False)] | None = None  # likewise
    prompt_usd_micros: Money
    cached_usd_micros: Money | None = None  # null: as the prompt
    output_usd_micros: Money
    engine_usd_micros: Money = 0
    engine_us_per_token: Annotated[int, Field(ge=0, le=60_000_000)] = 10_000  # expected, for budgets' holds

    @property
    def charged(self) -> dict[str, int]:
        """What is stored of them: the price of cached tokens is said too."""
        cached = self.prompt_usd_micros if self.cached_usd_micros is None else self.cached_usd_micros
        return {
            "prompt_usd_micros": self.prompt_usd_micros,
            "cached_usd_micros": cached,
            "output_usd_micros": self.output_usd_micros,
            "engine_usd_micros": self.engine_usd_micros,
            "engine_us_per_token": self.engine_us_per_token,
        }


class TariffCreate(Prices):
    """Body of POST /v1/admin/tariffs."""

    model: Name
    valid_from: Moment | None = None  # null: now; never in the past
    valid_until: Moment | None = None  # null: until a later one begins

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.valid_until is not None and self.valid_until <= (self.valid_from or 0):
            raise clash("valid_until", "must be after valid_from")
        return self


class BudgetTerms(Strict):
    """What a tenant, or one of its keys, may spend."""

    key: Name | None = None  # id, or the first 15 characters
    period: Annotated[Period, Field(strict=False)] = Period.MONTH
    soft_usd_micros: Money | None = None  # from it on answers and the webhook tell of it
    hard_usd_micros: Money | None = None  # from it on nothing is accepted
    webhook: Annotated[str, StringConstraints(max_length=2000)] | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.soft_usd_micros is None and self.hard_usd_micros is None:
            raise clash("hard_usd_micros", "or soft_usd_micros is needed")
        if self.webhook is not None and self.soft_usd_micros is None:
            raise clash("webhook", "needs soft_usd_micros")
        return self


class BudgetPut(BudgetTerms):
    """Body of PUT /v1/admin/budgets."""

    tenant: Name


class CorrectionCreate(Strict):
    """Body of POST /v1/admin/ledger/corrections."""

    task_id: Name
    cost_usd_micros: Annotated[
        int, Field(ge=-_MOST_USD_MICROS, le=_MOST_USD_MICROS)
    ]  # added; mostly negative
    reason: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.cost_usd_micros == 0:
            raise clash("cost_usd_micros", "must not be 0")
        return self
