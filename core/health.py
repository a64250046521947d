"""Is an engine well? Told from signs that it is getting worse, before it fails.

Healthy: it takes all work. Degraded: it works, but worse than it used to; people are sent elsewhere where there
is another worker. Unhealthy: what it says can't be trusted, or it is dead; it takes nothing and is built again.

Every sign is held against the engine's own past, never against a number for all machines. A verdict needs a sign
twice in a row, and is taken back when the sign is gone twice in a row.

Units: `*_s` seconds, `*_bytes` bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

SLOWER = 1.5  # times the own baseline: degraded
RECOVERED = 1.25  # below this a slow engine counts as recovered
PROBE_SLOWER = 3.0  # one generation is a smaller sample than a window of steps
_BASELINES = 5  # windows or probes that a baseline is learned from
_FEWEST = 20  # steps of one batch size that make a window
_GROWN = 1.5  # resident memory, times what it was when warm
_GROWN_BYTES = 512 << 20  # and at least so much more
_WARM_READINGS = 10
_LEAKED = 0.02  # share of the KV cache still taken while nothing runs


class Health(StrEnum):
    """A worker's health, as metrics and the admin API show it."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class Sign(StrEnum):
    """What can be wrong. Also a metric's label."""

    SLOW_STEPS = "slow_steps"
    SLOW_PROBE = "slow_probe"
    MEMORY_GROWTH = "memory_growth"
    KV_LEAK = "kv_leak"
    WRONG_ANSWER = "wrong_answer"
    NO_ANSWER = "no_answer"
    ENGINE_DOWN = "engine_down"


FATAL = frozenset({Sign.WRONG_ANSWER, Sign.NO_ANSWER, Sign.ENGINE_DOWN})


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of health, with what is wrong after it."""

    before: Health
    after: Health
    reasons: Mapping[str, str]  # by sign


class Trend:
    """Values against their own baseline, apart for each key: a full batch's steps say nothing of a small one's."""

    def __init__(self) -> None:
        self._learning: dict[int, list[float]] = {}
        self._baselines: dict[int, float] = {}

    def ratio(self, key: int, value: float) -> float | None:
        """Return value ÷ baseline, None while that is learned. A baseline may sink later and never rises."""
        known = self._baselines.get(key)
        if known is None:
            seen = self._learning.setdefault(key, [])
            seen.append(value)
            if len(seen) >= _BASELINES:
                self._baselines[key] = median(seen)
                del self._learning[key]
            return None
        self._baselines[key] = min(known, 0.9 * known + 0.1 * value) if value < known else known
        return value / known if known > 0 else None


class HealthPolicy:
    """One worker's health. Each `see_*` takes a look at one thing; `judge` says what follows from all."""

    def __init__(self) -> None:
        self.health = Health.HEALTHY
        self._steps, self._probes = Trend(), Trend()
        self._warm: list[int] = []
        self._counts: dict[Sign, int] = {}  # looks in a row that had it; negative: that had not
        self._details: dict[Sign, str] = {}
        self._standing: set[Sign] = set()

    def see_steps(self, window: Mapping[int, Sequence[float]]) -> None:
        """Take a window of step times in seconds, by size of the batch."""
        ratios = [
            ratio
            for key, times in window.items()
            if len(times) >= _FEWEST and (ratio := self._steps.ratio(key, median(times))) is not None
        ]
        if ratios:
            worst = max(ratios)
            limit = RECOVERED if Sign.SLOW_STEPS in self._standing else SLOWER
            self._note(Sign.SLOW_STEPS, worst >= limit, f"steps take {worst:.1f} times their baseline")

    def see_probe(self, *, right: bool, took_s: float, running: int) -> None:
        """Take a known generation that ended, beside `running` requests."""
        self._note(Sign.WRONG_ANSWER, not right, "the known generation lacks its expected words")
        self._note(Sign.NO_ANSWER, False, "")
        if not right:
            return
        ratio = self._probes.ratio(running.bit_length(), took_s)
        if ratio is not None:
            slow = ratio >= (RECOVERED if Sign.SLOW_PROBE in self._standing else PROBE_SLOWER)
            self._note(Sign.SLOW_PROBE, slow, f"the known generation takes {ratio:.1f} times its baseline")

    def see_no_answer(self, why: str) -> None:
        """Take a known generation that failed."""
        self._note(Sign.NO_ANSWER, True, f"the known generation failed: {why}")

    def see_memory(self, rss_bytes: int) -> None:
        """Take the resident memory of the worker and its engine together."""
        if len(self._warm) < _WARM_READINGS:
            self._warm.append(rss_bytes)
            return
        warm = max(self._warm)
        grown = rss_bytes > max(_GROWN * warm, warm + _GROWN_BYTES)
        detail = f"resident memory grew from {warm >> 20} to {rss_bytes >> 20} MiB"
        self._note(Sign.MEMORY_GROWTH, grown, detail)

    def see_idle_kv(self, usage: float) -> None:
        """Take the share of the KV cache in use while nothing runs: what is taken then is lost."""
        leaked = usage > _LEAKED
        self._note(Sign.KV_LEAK, leaked, f"{usage:.0%} of the KV cache is taken while nothing runs")

    def see_engine(self, *, up: bool, why: str = "") -> None:
        """Take the engine's death or its return; neither needs a second look."""
        if up:  # a new engine: nothing that was said of the old one holds
            self._counts.clear()
            self._standing.clear()
            self._warm.clear()
        else:
            self._standing.add(Sign.ENGINE_DOWN)
            self._details[Sign.ENGINE_DOWN] = why

    def judge(self) -> Transition | None:
        """Return the change that follows, None when health stays what it is."""
        before = self.health
        if self._standing & FATAL:
            self.health = Health.UNHEALTHY
        else:
            self.health = Health.DEGRADED if self._standing else Health.HEALTHY
        return Transition(before, self.health, self.reasons) if self.health is not before else None

    @property
    def reasons(self) -> dict[str, str]:
        """What is wrong, in words."""
        return {sign.value: self._details[sign] for sign in Sign if sign in self._standing}

    def _note(self, sign: Sign, present: bool, detail: str) -> None:
        count = self._counts.get(sign, 0)
        count = max(count, 0) + 1 if present else min(count, 0) - 1
        self._counts[sign] = count
        if present:
            self._details[sign] = detail
        if count >= 2:
            self._standing.add(sign)
        elif count <= -2:
            self._standing.discard(sign)
