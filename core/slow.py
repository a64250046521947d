"""Which ended tasks were slow, and what made them so: told from the lane's own recent tasks.

Slow is what lies above a percentile of what the lane lately did, so no threshold needs tuning by hand. The
cause is the part that stands out most against the lane's median of that part.

Units: `*_s` seconds.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

_KEEP = 512  # of a lane's newest tasks
_NOTABLE = 1.5  # times the median: in a lane of equal tasks the slowest are not slow
_NOTICED_S = 0.2  # above the median: nobody notices less
_ENOUGH = 50  # below this many nothing is said: a percentile of few is noise


class Cause(StrEnum):
    """What made a task slow. Also a metric's label."""

    WAIT = "wait"  # in the queue
    PREEMPTIONS = "preemptions"  # the engine pushed it out of the batch
    RETRIES = "retries"  # it took more than one attempt
    PROMPT_LENGTH = "prompt_length"  # prefill, by a prompt longer than usual
    PREFILL = "prefill"  # prefill, by a prompt of usual length
    LONG_DECODE = "long_decode"  # more output tokens than usual
    SLOW_DECODE = "slow_decode"  # not more tokens: each took longer


@dataclass(frozen=True, slots=True)
class Times:
    """Where one task's time went."""

    total_s: float
    wait_s: float
    prefill_s: float
    decode_s: float
    prompt_tokens: int
    output_tokens: int
    attempts: int = 1
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Slow:
    """A verdict."""

    cause: Cause
    limit_s: float  # the percentile that was exceeded
    median_s: float


class LaneHistory:
    """The newest tasks of one lane."""

    def __init__(self, share: float = 0.99) -> None:
        """`share`: a task above this share of the lane's newest ones is slow."""
        self._share = share
        self._newest: deque[Times] = deque()
        self._totals: list[float] = []  # theirs, in order

    def add(self, times: Times) -> Slow | None:
        """Judge a task against those before it, then remember it."""
        verdict = self._judge(times) if len(self._totals) >= _ENOUGH else None
        if len(self._newest) >= _KEEP:
            oldest = self._newest.popleft()
            del self._totals[bisect_left(self._totals, oldest.total_s)]
        self._newest.append(times)
        insort(self._totals, times.total_s)
        return verdict

    def _judge(self, times: Times) -> Slow | None:
        limit_s = self._totals[min(len(self._totals) - 1, int(self._share * len(self._totals)))]
        median_s = self._totals[len(self._totals) // 2]
        if times.total_s <= max(limit_s, _NOTABLE * median_s, median_s + _NOTICED_S):
            return None
        return Slow(self._cause(times), limit_s, median_s)

    def _cause(self, times: Times) -> Cause:
        if times.attempts > 1:
            return Cause.RETRIES
        if times.preemptions:
            return Cause.PREEMPTIONS
        excess = {
            part: getattr(times, part) - self._median(part) for part in ("wait_s", "prefill_s", "decode_s")
        }
        part = max(excess, key=lambda name: excess[name])
        if part == "wait_s":
            return Cause.WAIT
        if part == "prefill_s":
            longer = times.prompt_tokens > 1.5 * self._median("prompt_tokens")
            return Cause.PROMPT_LENGTH if longer else Cause.PREFILL
        longer = times.output_tokens > 1.5 * self._median("output_tokens")
        return Cause.LONG_DECODE if longer else Cause.SLOW_DECODE

    def _median(self, part: str) -> float:
        found = sorted(getattr(times, part) for times in self._newest)
        return float(found[len(found) // 2])
