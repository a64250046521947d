"""Where an engine's time goes: each step is shared among the requests in it, by tokens, and nothing is lost.

Wall time from the start = idle + busy + overhead, to the microsecond; busy = the sum over all accounts.
Overhead is time that serves no request: starting, warming up, being built again, and what an aborted request
left behind.

A step's weights are the tokens that it made and the prompt tokens that it worked through. An engine tells of
the latter when a prompt is done; a prompt that takes several steps is taken to get what the others leave of
a step's token budget, first come, first served, as schedulers do.

Units: microseconds; moments are of a monotonic clock, given by the caller.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice


@dataclass(slots=True, eq=False)
class Account:
    """Engine time of one attempt; or of a look at the engine that the worker takes itself, which is overhead."""

    used_us: int = 0
    prompt_left: int = 0  # tokens of its prompt that no step has dealt with yet
    overhead: bool = False


def own_account() -> Account:
    """Account for a request that no task pays for."""
    return Account(overhead=True)


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Time since the accounts were opened."""

    idle_us: int
    busy_us: int
    overhead_us: int


def now_us() -> int:
    """The clock that engines give to it."""
    return time.monotonic_ns() // 1000


class EngineAccounts:
    """See the module. Lives on the engine's loop."""

    def __init__(self, now: int) -> None:
        self._step_tokens = self._max_requests = 0
        self._mark = now  # all time before it is accounted for
        self._idle = self._busy = self._overhead = 0
        self._up = False
        self._open: dict[Account, None] = {}  # in order of arrival
        self._prompting: dict[Account, None] = {}  # of those, the ones that have made no token yet
        self._rest = 0  # of the last step's time, what did not divide

    def up(self, now: int, *, step_tokens: int = 0, max_requests: int = 0) -> None:
        """The engine can work from now on.

        `step_tokens`: most tokens that a step works through; 0: no bound, every prompt is done in one step.
        `max_requests`: in a step.
        """
        self._step_tokens, self._max_requests = step_tokens, max_requests
        self._overhead += self._advance(now)
        self._up = True

    def down(self, now: int) -> None:
        """The engine ended; its requests with it."""
        if self._up:
            self._leave(now)
        self._open.clear()
        self._prompting.clear()
        self._up = False

    def begin(self, account: Account, prompt_tokens: int, now: int) -> None:
        """A request goes to the engine."""
        if not self._open:
            self._leave(now)
        account.prompt_left = prompt_tokens
        self._open[account] = self._prompting[account] = None

    def end(self, account: Account, now: int) -> None:
        """A request left the engine."""
        self._prompting.pop(account, None)
        if self._open.pop(account, self) is None and not self._open:
            self._overhead += self._advance(now) + self._take_rest()

    def step(
        self, made: Mapping[Account, int], now: int, *, cached: Mapping[Account, int] | None = None
    ) -> None:
        """A step ended that made so many tokens for each account.

        `cached`: of accounts whose prompt is done with this step, its tokens that cost no work.
        """
        if not self._up:
            return
        dt = self._advance(now) + self._take_rest()
        weights = self._weights(made, cached or {})
        total = sum(weights.values())
        if not total:
            self._overhead += dt
            return
        self._rest = dt
        for account, weight in weights.items():
            share = dt * weight // total
            account.used_us += share
            self._rest -= share
            if account.overhead:
                self._overhead += share
            else:
                self._busy += share

    def read(self, now: int) -> EngineTime:
        """What the time since the start went to; of a step that goes on, nothing yet."""
        if not self._open:
            self._leave(now)
        return EngineTime(self._idle, self._busy, self._overhead + self._rest)

    def _weights(self, made: Mapping[Account, int], cached: Mapping[Account, int]) -> dict[Account, int]:
        weights = dict(made)
        if not self._prompting:
            return weights
        for account in [one for one in self._prompting if one in weights]:
            del self._prompting[account]
            weights[account] += max(0, account.prompt_left - cached.get(account, 0))
        if self._step_tokens:
            self._weigh_unfinished_prompts(weights)
        return weights

    def _weigh_unfinished_prompts(self, weights: dict[Account, int]) -> None:
        budget = self._step_tokens - sum(weights.values())
        places = self._max_requests - (len(self._open) - len(self._prompting))
        for account in islice(self._prompting, max(0, places)):
            # the last token of a prompt makes the first of the output: until then one is left
            part = min(account.prompt_left - 1, budget)
            if part <= 0:
                return
            account.prompt_left -= part
            weights[account] = part
            budget -= part

    def _leave(self, now: int) -> None:
        spent = self._advance(now)
        if not self._up or self._open:
            self._overhead += spent + self._take_rest()
        else:
            self._idle += spent

    def _advance(self, now: int) -> int:
        spent = max(0, now - self._mark)
        self._mark += spent
        return spent

    def _take_rest(self) -> int:
        rest, self._rest = self._rest, 0
        return rest
