"""Accept, or refuse with a reason and a time: what is accepted is accepted to be served in time.

Refusing early protects who was accepted before. The time given is one at which asking again is answered well: each
refusal is a promise that stands in the queue like accepted work until its time is over.

Units: tokens of prompt and maximum output together; `*_s` seconds.
"""

import math
from dataclasses import dataclass

UNKNOWN_S = 5.0  # to ask again after, where nothing is measured
LEAST_S, MOST_S = 1.0, 3600.0
MARGIN = 1.1  # estimates are not exact, and whoever obeys should be right to
GRACE_S = 5.0  # a promise stands for so long after its time, or a fifth of the time that it asked for


@dataclass(frozen=True, slots=True)
class Bound:
    """How much may be queued; None: any."""

    tasks: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What admission looks at."""

    tokens: int
    lane_tasks: int
    lane_tokens: float
    tenant_tasks: int
    tenant_tokens: float
    lane_bound: Bound
    tenant_bound: Bound
    tokens_per_s: float | None
    wait_s: float | None  # estimated, promises counted
    needs_s: float  # from its start to its end
    start_within_s: float | None  # None: any time before the deadline
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, and when to ask again."""

    code: str
    of_tenant: bool  # its own bound: 429
    retry_after_s: float


def judge(ask: Ask) -> Refusal | None:
    """Return why a task is refused, None where it is accepted."""
    for bound, tasks, tokens, of_tenant in (
        (ask.tenant_bound, ask.tenant_tasks, ask.tenant_tokens, True),
        (ask.lane_bound, ask.lane_tasks, ask.lane_tokens, False),
    ):
        over_tokens = 0.0 if bound.tokens is None else tokens + ask.tokens - bound.tokens
        if bound.tasks is not None and tasks >= bound.tasks:
            over_tokens = max(over_tokens, tokens / max(tasks, 1) * (tasks - bound.tasks + 1))
        # an empty queue takes a task of any length: it would never be taken otherwise
        if over_tokens > 0 and tasks:
            code = "tenant_queue_full" if of_tenant else "lane_full"
            return Refusal(code, of_tenant, _after(over_tokens, ask.tokens_per_s))
    if ask.wait_s is None:
        return None
    over_s = ask.wait_s + ask.needs_s - ask.deadline_s
    if over_s > 0:
        return Refusal("deadline_unreachable", False, _bounded(over_s * MARGIN))
    if ask.start_within_s is not None and ask.wait_s > ask.start_within_s:
        return Refusal("not_started_in_time", False, _bounded((ask.wait_s - ask.start_within_s) * MARGIN))
    return None


def _after(tokens: float, tokens_per_s: float | None) -> float:
    return _bounded(tokens / tokens_per_s * MARGIN if tokens_per_s else UNKNOWN_S)


def _bounded(seconds: float) -> float:
    return float(min(max(math.ceil(seconds), LEAST_S), MOST_S))


@dataclass(slots=True)
class _Promise:
    tokens: int
    due_at: float
    until: float
    pool: tuple[str, str, str]  # model, priority, tenant


class Promises:
    """Times that refusals named, by what was refused. What is kept open for them shrinks where nobody comes back."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._open: dict[bytes, _Promise] = {}
        self.kept_share = 1.0  # of those whose time came, lately

    def make(
        self, key: bytes, pool: tuple[str, str, str], tokens: int, retry_after_s: float, now: float
    ) -> None:
        """Note a refusal."""
        if len(self._open) < self._most or key in self._open:
            until = now + retry_after_s + max(GRACE_S, retry_after_s / 5)
            self._open[key] = _Promise(tokens, now + retry_after_s, until, pool)

    def take(self, key: bytes, now: float) -> bool:
        """Say whether this was refused before and comes back in its time; it is a promise no more."""
        self._expire(now)
        promise = self._open.get(key)
        if promise is None:
            return False
        if now < promise.due_at - 1.0:  # too early: it does not lose its place
            return False
        del self._open[key]
        self.kept_share += 0.1 * (1.0 - self.kept_share)
        return True

    def standing(self, now: float) -> dict[tuple[str, str, str], float]:
        """Return the tokens that are kept open, by pool."""
        self._expire(now)
        found: dict[tuple[str, str, str], float] = {}
        for promise in self._open.values():
            found[promise.pool] = found.get(promise.pool, 0.0) + promise.tokens * self.kept_share
        return found

    def _expire(self, now: float) -> None:
        for key in [key for key, promise in self._open.items() if promise.until < now]:
            del self._open[key]
            self.kept_share *= 0.9
