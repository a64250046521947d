"""Budgets: what a tenant or a key may spend, in a calendar month (UTC) or ever.

A task counts in the month in which it was accepted. It is accepted while what is spent and what open tasks hold
are below the hard threshold together, so a budget is overspent by less than one task's hold.

Units: micro-USD.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from core.money import usd


class Period(StrEnum):
    """What a budget lasts for."""

    MONTH = "month"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Standing:
    """A budget and what is left of it now."""

    id: str
    key_id: str | None  # None: the whole tenant's
    period: Period
    soft_usd_micros: int | None
    hard_usd_micros: int | None
    spent_usd_micros: int
    held_usd_micros: int  # the most that open tasks can cost

    @property
    def taken_usd_micros(self) -> int:
        return self.spent_usd_micros + self.held_usd_micros

    @property
    def exhausted(self) -> bool:
        """Nothing more is accepted now."""
        return self.hard_usd_micros is not None and self.taken_usd_micros >= self.hard_usd_micros

    @property
    def spent_up(self) -> bool:
        """Nothing more will be accepted, whatever the open tasks leave of their holds."""
        return self.hard_usd_micros is not None and self.spent_usd_micros >= self.hard_usd_micros

    @property
    def past_soft(self) -> bool:
        return self.soft_usd_micros is not None and self.spent_usd_micros >= self.soft_usd_micros

    def describe(self) -> str:
        """Say what it is and how much is used, for people."""
        owner = "key" if self.key_id else "tenant"
        span = "monthly" if self.period is Period.MONTH else "total"
        of = "" if self.hard_usd_micros is None else f" of {usd(self.hard_usd_micros)}"
        held = f", and {usd(self.held_usd_micros)} held by open tasks" if self.held_usd_micros else ""
        return f"the {owner}'s {span} budget: {usd(self.spent_usd_micros)}{of} USD spent{held}"


def warning_of(standings: Iterable[Standing]) -> str | None:
    """The header that tells of budgets past their soft threshold, as a structured list; None: there are none."""
    told = [
        f'"{"key" if one.key_id else "tenant"}-{one.period}";spent={one.spent_usd_micros}'
        f";held={one.held_usd_micros};soft={one.soft_usd_micros}"
        + ("" if one.hard_usd_micros is None else f";hard={one.hard_usd_micros}")
        for one in standings
        if one.past_soft
    ]
    return ", ".join(told) or None
