"""How fast a model's replicas are together: measured from what ended, for estimates of waits and run times.

Throughput is measured only while more waits than can run: otherwise what ends is what arrives, which says
how much was asked for and not how much could be done. It counts tokens as they are queued (prompt and maximum
output), so that backlog ÷ rate is a time.

Units: tokens; `*_s` seconds.
"""

from collections import deque
from dataclasses import dataclass, replace

WINDOW_S = 20.0
LEAST_S = 3.0  # of measuring before a figure is believed
SMOOTHING = 0.2  # weight of the newest figure in means of run times


@dataclass(frozen=True, slots=True)
class Ended:
    """What ended on one model since the last look."""

    finished: int = 0
    retired_tokens: int = 0  # prompt and maximum output, as they had been queued
    output_tokens: int = 0
    max_output_tokens: int = 0
    run_s: float = 0.0  # all together


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of a model; None: not measured yet."""

    tokens_per_s: float | None = None  # queued tokens that leave while more waits
    finished_per_s: float = 0.0
    run_s: float | None = None  # mean time from claim to end
    output_token_s: float | None = None  # run time an output token
    output_share: float | None = None  # output really made, of the maximum
    slots: int = 0  # of the ready replicas

    def needs_s(self, max_output_tokens: int) -> float:
        """Return how long a task runs, as far as is known: 0 while nothing is."""
        if self.output_token_s is None or self.output_share is None:
            return 0.0
        return max_output_tokens * self.output_share * self.output_token_s


class Meter:
    """Measures one model's pace, from looks that follow one another."""

    def __init__(self, pace: Pace = Pace()) -> None:
        self.pace = pace
        self._looks: deque[tuple[float, int, int]] = deque()  # (seconds, retired tokens, finished)
        self._busy: deque[tuple[float, int, int]] = deque()  # likewise, while more waited than could run
        self._busy_s = 0.0

    def observe(self, seconds: float, ended: Ended, *, saturated: bool, slots: int) -> Pace:
        """Take in what ended in the last seconds and return the pace."""
        pace = replace(self.pace, slots=slots)
        _keep(self._looks, (seconds, ended.retired_tokens, ended.finished))
        pace = self._of_runs(pace, ended)
        pace = self._of_throughput(pace, seconds, ended, saturated)
        self.pace = pace
        return pace

    def _of_runs(self, pace: Pace, ended: Ended) -> Pace:
        if not ended.finished:
            return pace
        pace = replace(pace, run_s=_mean(pace.run_s, ended.run_s / ended.finished))
        if ended.output_tokens and ended.max_output_tokens:
            pace = replace(
                pace,
                output_token_s=_mean(pace.output_token_s, ended.run_s / ended.output_tokens),
                output_share=_mean(pace.output_share, ended.output_tokens / ended.max_output_tokens),
            )
        return pace

    def _of_throughput(self, pace: Pace, seconds: float, ended: Ended, saturated: bool) -> Pace:
        if not saturated:
            self._busy_s = 0.0
            self._busy.clear()
        else:
            # what ends while the slots are still filling up is of before
            if self._busy_s >= (pace.run_s or 0.0):
                _keep(self._busy, (seconds, ended.retired_tokens, ended.finished))
            self._busy_s += seconds
        span_s, retired, finished = (sum(column) for column in zip(*self._looks, strict=True))
        if span_s >= LEAST_S:
            pace = replace(pace, finished_per_s=finished / span_s)
            if pace.tokens_per_s is not None or saturated:
                seen = max(pace.tokens_per_s or 0.0, retired / span_s)
                pace = replace(pace, tokens_per_s=seen or None)
        if self._busy:
            span_s, retired, _ = (sum(column) for column in zip(*self._busy, strict=True))
            if span_s >= LEAST_S and retired:
                pace = replace(pace, tokens_per_s=retired / span_s)
        return pace


def _keep(looks: deque[tuple[float, int, int]], look: tuple[float, int, int]) -> None:
    looks.append(look)
    while len(looks) > 1 and sum(one[0] for one in looks) - looks[0][0] >= WINDOW_S:
        looks.popleft()


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
