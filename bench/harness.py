"""Orders the arms of a benchmark, pairs their runs, and turns figures into the result's format.

Arms run interleaved, A B B A: a drift of the machine (heat, neighbours) then weighs on both alike. A ratio is
taken within each pair of neighbouring runs; the median of the pairs is the value, their extremes its spread.
"""

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_OPERATORS: dict[str, Callable[[float, float], bool]] = {"≥": operator.ge, "≤": operator.le}


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the extremes around it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a result."""

    name: str
    value: float
    low: float
    high: float
    unit: str  # "ratio", or of an absolute figure
    target: str  # such as "≥ 0.95"; empty: none
    note: str = ""  # every scale-down is said here

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target; None without one."""
        return meets(self.value, self.target)


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark writes."""

    bench: str
    machine: Mapping[str, Any]
    rows: Sequence[Row]
    arms: Mapping[str, Any] = field(default_factory=dict)  # everything the rows were made of

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that is written."""
        return asdict(self)


def read_result(value: Mapping[str, Any]) -> Result:
    """Read a result back. Raises: ValueError when it isn't one."""
    try:
        rows = [Row(**row) for row in value["rows"]]
        return Result(value["bench"], value["machine"], rows, value["arms"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a benchmark's result: {error}") from error


def meets(value: float, target: str) -> bool | None:
    """Say whether a value reaches a target such as "≥ 0.95"; None when the target isn't of that form."""
    words = target.split()
    if len(words) < 2 or words[0] not in _OPERATORS:
        return None
    return _OPERATORS[words[0]](value, float(words[1]))


def interleaved(first: str, second: str, pairs: int) -> list[str]:
    """Return the order of runs: A B, B A, A B, and so on."""
    order: list[str] = []
    for pair in range(pairs):
        order += (first, second) if pair % 2 == 0 else (second, first)
    return order


def spread(values: Sequence[float]) -> Spread:
    """Return median, minimum and maximum. Raises: statistics.StatisticsError when there is no value."""
    return Spread(statistics.median(values), min(values), max(values))


def paired(order: Sequence[str], values: Sequence[float], over: str) -> list[float]:
    """Return one ratio for each pair of neighbouring runs: the other arm's value over that of arm `over`."""
    if len(order) != len(values) or len(order) % 2:
        raise ValueError("pairs need two runs each")
    ratios: list[float] = []
    for at in range(0, len(order), 2):
        names = order[at : at + 2]
        if names.count(over) != 1:
            raise ValueError(f"the runs {at} and {at + 1} are not of two arms: {names}")
        below = at + names.index(over)
        ratios.append(values[2 * at + 1 - below] / values[below])
    return ratios


def quiet_pairs(disturbances: Sequence[float], limit: float) -> list[int]:
    """Return the numbers of the pairs neither run of which was disturbed more than `limit`.

    All pairs are returned where fewer than two were quiet. The choice looks at the disturbance alone, never at
    what was measured; the result keeps every run.
    """
    pairs = range(len(disturbances) // 2)
    quiet = [pair for pair in pairs if max(disturbances[2 * pair : 2 * pair + 2]) <= limit]
    return quiet if len(quiet) >= 2 else list(pairs)


def row(name: str, values: Sequence[float], unit: str, target: str, note: str = "") -> Row:
    """Build a row from one figure a pair."""
    of = spread(values)
    median, low, high = (round(value, 4) for value in (of.median, of.low, of.high))
    return Row(name, median, low, high, unit, target, note)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the values doesn't exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
