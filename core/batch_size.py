"""How many requests of batch work may run at once, so that a person's first token comes in time.

A first token waits for about two steps of the engine, and a step takes longer the more requests run: that is
what batch work costs a person. The size falls at once where the first tokens came late, by what the step times
promise, and rises again little by little; without interactive work it is as large as it may be.

Units: `*_s` seconds.
"""

import math
from dataclasses import dataclass

STEPS = 2.0  # the rest of the step under way, and the one that reads the prompt
FLOOR_SHARE = 8  # batch work keeps at least an eighth of what it may have
RISE_SHARE = 16
CALM_SHARE = 0.7  # below this share of the target there is room for more
_DECAY = 0.98  # a step's weight after each further one: the newest fifty count


@dataclass(frozen=True, slots=True)
class Pressure:
    """What is known when the size is decided."""

    size: int  # now
    most: int  # it may ever be
    first_token_s: float | None  # interactive work's, lately: of the slow ones; None: no such work lately
    target_s: float
    running: int  # requests in the engine, all priorities
    step_s: float | None  # predicted for `running`
    extra_step_s: float | None  # that one more request adds to a step; None: not known


def batch_size(now: Pressure) -> int:
    """Decide the size: at least an eighth of the most (and 1), at most the most."""
    floor = max(1, now.most // FLOOR_SHARE)
    size = min(max(now.size, floor), now.most)  # the most may have changed meanwhile
    if now.first_token_s is None:
        return now.most
    if now.first_token_s > now.target_s:
        return max(floor, size - _surplus(size, now))
    if now.first_token_s < CALM_SHARE * now.target_s:
        return min(now.most, size + max(1, now.most // RISE_SHARE))
    return size


def _surplus(size: int, now: Pressure) -> int:
    """How many fewer make the steps shorter by what the first tokens came too late; at most a quarter."""
    most = max(1, size // 4)
    if not now.extra_step_s or now.first_token_s is None:
        return most
    late_s = now.first_token_s - now.target_s
    return math.ceil(min(most, late_s / (STEPS * now.extra_step_s)))


class StepTimes:
    """Step time by the number of running requests: a line through what was seen lately."""

    def __init__(self) -> None:
        self._weight = self._n = self._s = self._nn = self._ns = 0.0

    def add(self, running: int, seconds: float) -> None:
        """Take one step."""
        self._weight = self._weight * _DECAY + 1
        self._n = self._n * _DECAY + running
        self._s = self._s * _DECAY + seconds
        self._nn = self._nn * _DECAY + running * running
        self._ns = self._ns * _DECAY + running * seconds

    @property
    def slope_s(self) -> float | None:
        """What one more request adds to a step; None while all steps looked alike."""
        spread = self._weight * self._nn - self._n * self._n
        if self._weight < 2 or spread < 0.25 * self._weight * self._weight:
            return None
        return max(0.0, (self._weight * self._ns - self._n * self._s) / spread)

    def at(self, running: int) -> float | None:
        """The step time with so many requests; None before the first step."""
        if not self._weight:
            return None
        mean_s, mean_n = self._s / self._weight, self._n / self._weight
        return max(0.0, mean_s + (self.slope_s or 0.0) * (running - mean_n))
