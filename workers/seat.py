"""A running task's hold on its slot, as the task sees it: it may offer the slot, and get one again.

All on the loop's thread.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.slots import Candidate

if TYPE_CHECKING:
    from workers.job import Job
    from workers.slots import Slots


@dataclass(frozen=True, slots=True)
class Cost:
    """What giving its slot away would cost a task now."""

    recompute_tokens: int  # prompt and sent tokens: what the engine must read again
    left_tokens: int  # that it may still generate
    preemptions: int  # so far
    remaining_s: float  # to its deadline
    token_s: float  # it takes for a token


class Seat:
    """One job's seat, for as long as it runs."""

    def __init__(self, slots: "Slots", job: "Job", clock: Callable[[], float]) -> None:
        self._slots, self._job, self._clock = slots, job, clock
        self._since = clock()
        self._cost: Callable[[], Cost | None] | None = None
        self._yield: Callable[[], None] | None = None
        self._back = asyncio.Event()
        self._back.set()

    def offer(self, cost: Callable[[], Cost | None], give_up: Callable[[], None]) -> None:
        """From now on the slot may be taken, once: `give_up` is called then, and must stop the engine's work.

        `cost` is asked before; None says not now.
        """
        self._cost, self._yield = cost, give_up
        self._slots.set_offer(self._job, self)

    def withdraw(self) -> None:
        """The slot may no longer be taken."""
        self._slots.set_offer(self._job, None)

    async def regained(self) -> None:
        """Wait until the job has a slot; at once when nobody took it."""
        await self._back.wait()

    # -- told by the slots

    def candidate(self, job: "Job", now: float) -> "Candidate[Job] | None":
        """This seat for `core.slots.choose_victim`."""
        cost = self._cost() if self._cost is not None else None
        if cost is None:
            return None
        return Candidate(
            key=job,
            kind=job.kind,
            recompute_tokens=cost.recompute_tokens,
            left_tokens=cost.left_tokens,
            preemptions=cost.preemptions,
            ran_s=now - self._since,
            remaining_s=cost.remaining_s,
            token_s=cost.token_s,
        )

    def take_away(self) -> None:
        """The slot is another's."""
        self._back.clear()
        if self._yield is not None:
            self._yield()

    def give_back(self) -> None:
        """The job has a slot again."""
        self._since = self._clock()
        self._back.set()


class NoSeat:
    """Of a task that runs outside of a pool, as in tests: nobody takes its slot."""

    def offer(self, cost: Any, give_up: Any) -> None:
        """Nobody will ask."""

    def withdraw(self) -> None:
        """Nothing was offered."""

    async def regained(self) -> None:
        """It never lost it."""
