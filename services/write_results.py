"""Write a batch's results as they come: lines that ended go into a part, once each.

A part is written first and then noted together with its lines, in one transaction. A crash between the two leaves
bytes that no row names, in a folder that goes with the batch; the lines are written again into another part.
"""

import asyncio
import secrets
from contextlib import suppress
from typing import Any

import orjson
from sqlalchemy.ext.asyncio import AsyncEngine

from core.batches import BatchState, LineOutcome
from core.failures import RULES, Failure
from core.states import TaskState
from schemas import batches as wire
from schemas.batches import result_line
from services.batch_input import read_window
from services.end_batch import parts_key
from storage import batch_items, tasks
from storage.autocommit import autocommit
from storage.batch_items import Ended, NewItem
from storage.batches import Batch
from storage.blobs import Blobs

PART_LINES, PART_BYTES = 500, 8 << 20  # at most; bytes by one response
_DRAIN_LINES = 5000  # of lines that never ran, in one part
Result = tuple[LineOutcome, dict[str, Any]]


async def stop_tasks(database: AsyncEngine, batch: Batch) -> dict[str, TaskState]:
    """Cancel the tasks of a batch that is being cancelled; return the states of those that changed."""
    async with database.begin() as connection:
        live = await batch_items.find_live(connection, batch.id)
        return await tasks.request_cancel(connection, batch.caller.tenant_id, live)


async def write_ended(database: AsyncEngine, blobs: Blobs, batch: Batch, part: int) -> list[str] | None:
    """Write a part of lines that ended; return their tasks, None when no line was to be written.

    Raises: OvertakenError.
    """
    async with autocommit(database) as connection:
        ended = await batch_items.find_ended(connection, batch.id, limit=PART_LINES, most_bytes=PART_BYTES)
    if not ended:
        return None
    results = {line.line: (line.custom_id, _result(batch, line)) for line in ended}
    async with _Part(blobs, batch, part) as written:
        await written.write(results)
        async with database.begin() as connection:
            await batch_items.add_part(connection, batch, written.outcomes, part=part, **written.keys)
    return [line.task_id for line in ended if line.task_id]


async def write_unstarted(
    database: AsyncEngine, blobs: Blobs, batch: Batch, part: int, *, max_line_bytes: int
) -> tuple[int, int]:
    """Write a part of lines that will never run; return the cursor behind them. Raises: OvertakenError."""
    lines, to_bytes, to_line = await read_window(
        batch, blobs, most=_DRAIN_LINES, max_line_bytes=max_line_bytes
    )
    cancelled = batch.state is BatchState.CANCELLING
    outcome = LineOutcome.CANCELLED if cancelled else LineOutcome.EXPIRED
    said = wire.CANCELLED if cancelled else wire.EXPIRED
    results: dict[int, tuple[str, Result]] = {
        line.number: (wire.read_line(line.text, batch.endpoint).custom_id, (outcome, said)) for line in lines
    }
    items = [NewItem(number, custom_id, outcome=outcome) for number, (custom_id, _) in results.items()]
    async with _Part(blobs, batch, part) as written:
        await written.write(results)
        async with database.begin() as connection:
            await batch_items.advance(
                connection, batch, to_bytes=to_bytes, to_line=to_line, items=items, part=part
            )
            await batch_items.add_part(
                connection, batch, written.outcomes, part=part, inserted=True, **written.keys
            )
    return to_bytes, to_line


def _result(batch: Batch, line: Ended) -> Result:
    """What a line's result says, and which of the files holds it."""
    if line.refusal is not None:
        return LineOutcome.FAILED, orjson.loads(line.refusal)
    task_id = str(line.task_id)
    match line.state:
        case TaskState.COMPLETED if line.response is not None:
            return LineOutcome.COMPLETED, wire.answered(200, task_id, orjson.Fragment(line.response))
        case TaskState.CANCELLED if batch.state is BatchState.CANCELLING:
            return LineOutcome.CANCELLED, wire.CANCELLED
        case TaskState.EXPIRED | TaskState.INCOMPLETE:
            return LineOutcome.EXPIRED, wire.EXPIRED
        case TaskState.CANCELLED:
            said = wire.unanswered("task_cancelled", "The request's task was cancelled.")
            return LineOutcome.FAILED, said
        case TaskState.FAILED:
            rule = RULES[line.failure or Failure.INTERNAL]
            message = line.failure_message or rule.message
            return LineOutcome.FAILED, orjson.loads(
                wire.refused(rule.http_status, task_id, message, line.failure)
            )
        case _:  # its row or its answer is gone: past a retention shorter than the batch
            said = wire.unanswered(
                "result_purged", "The result was past its retention before it was written."
            )
            return LineOutcome.FAILED, said


class _Part:
    """The blobs of one part; whatever stops before it is noted removes them."""

    def __init__(self, blobs: Blobs, batch: Batch, part: int) -> None:
        self._blobs, self._batch = blobs, batch
        # a name of its own: whoever wrote this part before and was stopped may still be writing
        self._name = f"{parts_key(batch.id)}/{part:06d}-{secrets.token_hex(4)}"
        self.keys: dict[str, Any] = {"output_key": None, "error_key": None}
        self.outcomes: dict[int, LineOutcome] = {}

    async def __aenter__(self) -> "_Part":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for key in filter(None, self.keys.values()):
                with suppress(Exception):
                    await asyncio.shield(self._blobs.delete(key))

    async def write(self, results: dict[int, tuple[str, Result]]) -> None:
        """Write the lines, each into the blob that its outcome says."""
        data: dict[str, list[bytes]] = {"output_key": [], "error_key": []}
        for number, (custom_id, (outcome, said)) in results.items():
            self.outcomes[number] = outcome
            kind = "output_key" if outcome is LineOutcome.COMPLETED else "error_key"
            data[kind].append(result_line(self._batch.id, number, custom_id, said))
        for kind, lines in data.items():
            if lines:
                self.keys[kind] = f"{self._name}-{kind.removesuffix('_key')}"
                async with self._blobs.writing(self.keys[kind]) as writer:
                    await writer.write(b"".join(lines))
