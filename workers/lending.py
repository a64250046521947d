"""An attempt's part in lending its slot: batch work stops for a person and goes on later from what it has sent.

Only work that may continue by the checkpoint rules (`core.resume`) lends. The task
stays claimed and its stream shows nothing of it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from core.lanes import Priority
from runtime import metrics
from storage.records import Claim
from workers.pool import current_seat
from workers.progress import Progress
from workers.seat import Cost

log = structlog.get_logger()


class Lending:
    """The slot of one attempt. Made inside the job that runs the attempt."""

    def __init__(self, claim: Claim, abort: Callable[[], Awaitable[None]], *, may_continue: bool) -> None:
        """`abort` stops what runs in the engine; `may_continue`: from what was sent, by the checkpoint rules."""
        self._claim, self._abort = claim, abort
        self._seat = current_seat()
        self._may = may_continue and claim.lane.priority is Priority.BATCH
        self.preemptions = claim.preemptions  # of the task, over all attempts
        self.taken = False
        self._claimed_at = self._began = time.monotonic()
        self._began_with = 0  # tokens
        self._aborting: asyncio.Future[None] | None = None

    def offer(self, progress: Progress, flush: Callable[[], None]) -> None:
        """Let the slot be taken from now on. `flush` sends what was generated."""
        self.taken = False
        self._began, self._began_with = time.monotonic(), progress.sent_tokens
        if not self._may:
            return

        def give_up() -> None:
            self.taken = True
            self.preemptions += 1
            flush()
            self._aborting = asyncio.ensure_future(self._abort())
            metrics.SLOTS_LENT.labels(self._claim.lane.model).inc()
            log.info(
                "slot_lent",
                task_id=self._claim.task_id,
                preemptions=self.preemptions,
                sent_tokens=progress.sent_tokens,
            )

        self._seat.offer(lambda: self._cost(progress), give_up)

    def withdraw(self) -> None:
        """The slot is needed, or no longer had."""
        if self._may:
            self._seat.withdraw()

    async def regained(self) -> None:
        """Wait for a slot."""
        await self._seat.regained()

    def _cost(self, progress: Progress) -> Cost | None:
        sent = progress.sent_tokens
        new = sent - self._began_with
        if not new:
            return None  # it is being read by the engine: nothing is known of its pace, and all would be lost
        now = time.monotonic()
        return Cost(
            recompute_tokens=self._claim.prompt_tokens + sent,
            left_tokens=max(0, self._claim.max_output_tokens - sent),
            preemptions=self.preemptions,
            remaining_s=self._claim.remaining_s - (now - self._claimed_at),
            token_s=(now - self._began) / new,
        )
