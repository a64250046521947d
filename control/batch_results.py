"""Running batches: what ended is written to the results, and what is done, cancelled or late is brought to its end."""

import time
from collections.abc import Mapping

import structlog
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from control.each import for_each
from core.batches import BatchState
from core.states import TaskState
from core.traces import trace_of
from runtime.ended import Endings
from runtime.tracing import BATCH, Span, Tracer
from services.end_batch import end_batch
from services.read_batches import batches_to, find_batch
from services.write_results import PART_LINES, stop_tasks, write_ended, write_unstarted
from storage.batches import Batch, Work
from storage.blobs import Blobs
from storage.streams import EventStreams

_WRITE_EVERY_S = 5.0  # a part, where few lines end: many small ones make a slow end
log = structlog.get_logger()


class BatchResults:
    """The results' tick."""

    open = False  # whether any batch is

    def __init__(
        self,
        database: AsyncEngine,
        blobs: Blobs,
        streams: EventStreams,
        endings: Endings,
        *,
        max_line_bytes: int,
        tracer: Tracer | None = None,
    ) -> None:
        self._database, self._blobs, self._streams = database, blobs, streams
        self._endings, self._tracer = endings, tracer
        self._max_line_bytes = max_line_bytes
        self._written_at: dict[str, float] = {}  # monotonic, of each open batch's newest part

    async def __call__(self) -> Mapping[str, int]:
        """Write what ended; returns how many lines."""
        open_ones = await batches_to(Work.TEND, self._database)
        self.open = bool(open_ones)
        ids = {batch.id for batch in open_ones}
        self._written_at = {id_: at for id_, at in self._written_at.items() if id_ in ids}
        return {"written": await for_each(open_ones, self._tend)}

    async def _tend(self, batch: Batch) -> int:
        if batch.state is BatchState.VALIDATING and not batch.late:
            return 0
        if batch.state is BatchState.CANCELLING:
            await self._stop(batch)
        written, current = 0, batch
        while True:
            count = await self._write(current)
            written += count
            again = await find_batch(self._database, batch.caller.tenant_id, batch.id) if count else current
            if again is None:
                return written
            current = again
            if _is_done(current):
                state = await end_batch(self._database, self._blobs, current)
                log.info("batch_ended", batch_id=batch.id, state=state, lines=current.total)
                if self._tracer is not None:
                    self._tracer.emit([_span(current, str(state))])
                return written
            if not count:
                return written

    async def _write(self, batch: Batch) -> int:
        """Write one part, if it is time for one; return its lines."""
        if batch.ready and self._is_time(batch):
            task_ids = await write_ended(self._database, self._blobs, batch, batch.parts)
            self._written_at[batch.id] = time.monotonic()
            await self._forget(task_ids or [])
            return min(batch.ready, PART_LINES)
        stopped = batch.state is BatchState.CANCELLING or batch.late
        if stopped and batch.model is not None and not batch.expanded:
            _, to_line = await write_unstarted(
                self._database, self._blobs, batch, batch.parts, max_line_bytes=self._max_line_bytes
            )
            return max(1, to_line - batch.cursor_line)
        return 0

    def _is_time(self, batch: Batch) -> bool:
        waited_s = time.monotonic() - self._written_at.setdefault(batch.id, time.monotonic())
        return (
            batch.ready in (batch.unwritten, PART_LINES)
            or batch.ready > PART_LINES
            or waited_s > _WRITE_EVERY_S
        )

    async def _stop(self, batch: Batch) -> None:
        changed = await stop_tasks(self._database, batch)
        await self._endings.tell([id_ for id_, state in changed.items() if state is TaskState.CANCELLED])
        try:
            for task_id, state in changed.items():
                if state is TaskState.CANCELLING:
                    await self._streams.ask_cancel(task_id)
        except RedisError as error:  # the lease's renewal tells the workers
            log.warning("cancel_not_announced", batch_id=batch.id, error=str(error))

    async def _forget(self, task_ids: list[str]) -> None:
        """Free what Redis keeps of the tasks: their results are in the part."""
        try:
            if task_ids:
                await self._streams.forget(task_ids)
        except RedisError as error:  # it ends by itself
            log.warning("streams_not_freed", error=str(error))


def _is_done(batch: Batch) -> bool:
    """Whether nothing is left to write: all lines are, or none was ever begun."""
    return batch.unwritten == 0 and (batch.expanded or batch.model is None)


def _span(batch: Batch, state: str) -> Span:
    """The batch's own span, which its items' traces link to."""
    return Span(
        BATCH,
        trace_of(batch.id, BATCH, sampled=True),
        int(batch.created_at.timestamp() * 1e9),
        time.time_ns(),
        attributes={
            "headrace.batch.id": batch.id,
            "headrace.tenant.id": batch.caller.tenant_id,
            "gen_ai.request.model": batch.model,
            "headrace.state": state,
            "headrace.batch.lines": batch.total,
            "headrace.batch.failed": batch.failed,
        },
    )
