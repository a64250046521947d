"""Lines of running batches become tasks, a window at a time: a batch never has more than so many that are open."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncEngine

from control.batch_lines import Ready, first_tasks, items_and_tasks, make_ready, refuse
from control.each import for_each
from runtime import metrics
from runtime.tokenizers import Tokenizers
from runtime.tracing import ItemTrace, Tracer
from schemas.errors import RequestError
from services.authenticate import access_of
from services.batch_input import read_window
from services.expand_batch import NoRoomError, expand_batch
from services.hold import BudgetExhaustedError
from services.read_batches import batches_to
from storage.batches import Batch, Work
from storage.blobs import Blobs


@dataclass(frozen=True, slots=True)
class Limits:
    """How lines become tasks."""

    live_tasks: int  # of one batch: it gets further ones once half of these are done
    max_line_bytes: int
    max_attempts: int


class BatchExpansion:
    """The expansion's tick."""

    begun = False  # whether any batch has lines left to expand

    def __init__(
        self,
        database: AsyncEngine,
        blobs: Blobs,
        limits: Limits,
        wake: Callable[[], None],
        tracer: Tracer | None = None,
    ) -> None:
        """`wake` tells the dispatcher that something waits."""
        self._database, self._blobs, self._limits, self._wake = database, blobs, limits, wake
        self._tracer = tracer
        self._tokenizers = Tokenizers()

    async def __call__(self) -> Mapping[str, int]:
        """Give each running batch its next window, where there is room for one.

        Windows are never small, so that there is something to order in them.
        """
        begun = await batches_to(Work.EXPAND, self._database)
        self.begun = bool(begun)
        half = self._limits.live_tasks // 2
        room = [batch for batch in begun if not batch.late and batch.unwritten <= half]
        return {"expanded": await for_each(room, self._expand)}

    async def _expand(self, batch: Batch) -> int:
        """Commit the next window, or as much of it as grant and budgets have room for; return its lines."""
        read_at = time.monotonic()
        lines, to_bytes, to_line = await read_window(
            batch,
            self._blobs,
            most=self._limits.live_tasks - batch.unwritten,
            max_line_bytes=self._limits.max_line_bytes,
        )
        access = await access_of(self._database, batch.caller)
        ready: list[Ready] = []
        for line in lines:
            await asyncio.sleep(0)  # a window's prompts take a second to count: leases are renewed meanwhile
            ready.append(await make_ready(batch, line, access, self._tokenizers, self._limits.max_attempts))
        while True:
            try:
                await self._commit(batch, ready, to_bytes, to_line, read_at)
                return len(ready)
            except NoRoomError as error:
                ready = first_tasks(ready, error.room)
            except BudgetExhaustedError as error:
                if error.standing.spent_up:  # these lines can't run: who raises the budget does them again
                    ready = [_unaffordable(batch, one, error) for one in ready]
                    continue
                ready = first_tasks(ready, 0)  # tasks that are open will give back what they hold too much
            if not ready:
                return 0
            to_bytes, to_line = ready[-1].line.end, ready[-1].line.number

    async def _commit(
        self, batch: Batch, ready: Sequence[Ready], to_bytes: int, to_line: int, read_at: float
    ) -> None:
        items, tasks = items_and_tasks(ready)
        traces = [ItemTrace(self._tracer, batch.id) for _ in tasks]
        tasks = [trace.carried_by(task) for trace, task in zip(traces, tasks, strict=True)]
        left_s = max(0.0, batch.left_s - (time.monotonic() - read_at))
        await expand_batch(
            self._database,
            batch,
            to_bytes=to_bytes,
            to_line=to_line,
            items=items,
            new=[replace(task, deadline_s=left_s) for task in tasks],
        )
        for trace in traces:
            trace.admitted()
        for task in tasks:
            metrics.count_accepted(task.lane, task.caller.tenant_class)
        if tasks:
            self._wake()


def _unaffordable(batch: Batch, one: Ready, error: BudgetExhaustedError) -> Ready:
    if one.task is None:
        return one
    refusal = RequestError(429, f"The budget is exhausted: {error}.", "budget_exhausted")
    return refuse(batch, one.line, one.custom_id, refusal)
