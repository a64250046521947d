"""Lines of batches: as they become tasks, and as they are written to the results.

The cursor and the lines that it passed move in one transaction, and so do a part of the results and the lines
that it holds; each is a compare-and-set on what was read before, so that of two who do the same one fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.batches import LineOutcome
from core.failures import Failure
from core.states import TaskState
from storage.batch_tables import batch_parts
from storage.batches import Batch


class OvertakenError(Exception):
    """Somebody else moved the batch on; what was done for it is void."""


@dataclass(frozen=True, slots=True)
class NewItem:
    """A line that the cursor passes: a task's, or one that never becomes a task."""

    line: int
    custom_id: str
    task_id: str | None = None
    refusal: str | None = None  # JSON
    outcome: LineOutcome | None = None  # of one that is written at once


@dataclass(frozen=True, slots=True)
class Ended:
    """A line that ended and is in no part yet."""

    line: int
    custom_id: str
    task_id: str | None
    refusal: str | None
    state: TaskState | None  # None: it never was a task
    failure: Failure | None
    failure_message: str | None
    response: str | None  # JSON text


_ADVANCE = sa.text("""
UPDATE batches SET cursor_bytes = :to_bytes, cursor_line = :to_line
WHERE id = :id AND cursor_bytes = :from_bytes
  AND (state = 'cancelling' OR (state = 'in_progress' AND (expires_at <= now()) = :late))
RETURNING id
""")

_INSERT = sa.text("""
INSERT INTO batch_items (batch_id, line, custom_id, task_id, refusal, part, outcome)
SELECT :id, line, custom_id, task_id, refusal, CASE WHEN outcome IS NOT NULL THEN CAST(:part AS int) END, outcome
FROM jsonb_to_recordset(CAST(:rows AS jsonb))
  AS r(line int, custom_id text, task_id text, refusal text, outcome text)
""")


async def advance(
    connection: AsyncConnection,
    batch: Batch,
    *,
    to_bytes: int,
    to_line: int,
    items: Sequence[NewItem],
    part: int | None = None,
) -> None:
    """Move the cursor over lines, which become items. Raises: OvertakenError."""
    values = {
        "id": batch.id,
        "from_bytes": batch.cursor_bytes,
        "late": batch.late,
        "to_bytes": to_bytes,
        "to_line": to_line,
    }
    if (await connection.execute(_ADVANCE, values)).one_or_none() is None:
        raise OvertakenError(batch.id)
    rows = [
        {
            "line": item.line,
            "custom_id": item.custom_id,
            "task_id": item.task_id,
            "refusal": item.refusal,
            "outcome": item.outcome,
        }
        for item in items
    ]
    await connection.execute(_INSERT, {"id": batch.id, "rows": orjson.dumps(rows).decode(), "part": part})


_ENDED = sa.text("""
SELECT * FROM (
  SELECT i.line, i.custom_id, i.task_id, i.refusal, t.state, t.failure, t.failure_message, p.response,
    sum(octet_length(p.response)) OVER (ORDER BY i.line) - octet_length(p.response) AS bytes_before
  FROM batch_items i LEFT JOIN tasks t ON t.id = i.task_id LEFT JOIN task_payloads p ON p.task_id = i.task_id
  WHERE i.batch_id = :id AND i.part IS NULL AND (t.id IS NULL OR t.finished_at IS NOT NULL)
  ORDER BY i.line LIMIT :limit) AS ended
WHERE coalesce(bytes_before, 0) < :most_bytes ORDER BY line
""")


async def find_ended(
    connection: AsyncConnection, batch_id: str, *, limit: int, most_bytes: int
) -> list[Ended]:
    """List lines that ended and are not in the results yet, in the file's order.

    At most so many, and none behind those whose responses reach so many bytes.
    """
    return [
        Ended(
            line=row.line,
            custom_id=row.custom_id,
            task_id=row.task_id,
            refusal=row.refusal,
            state=TaskState(row.state) if row.state else None,
            failure=Failure(row.failure) if row.failure else None,
            failure_message=row.failure_message,
            response=row.response,
        )
        for row in await connection.execute(
            _ENDED, {"id": batch_id, "limit": limit, "most_bytes": most_bytes}
        )
    ]


# The lines of a part, and their tasks' share of usage and cost: exactly what the ledger has for them.
_WRITE = sa.text("""
WITH w AS (
  SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(line int, outcome text)
), marked AS (
  UPDATE batch_items i SET part = :part, outcome = w.outcome FROM w
  WHERE i.batch_id = :id AND i.line = w.line AND i.part IS NULL RETURNING i.task_id
), charged AS (
  SELECT count(*) AS lines, coalesce(sum(l.prompt_tokens), 0) AS prompt, coalesce(sum(l.cached_tokens), 0) AS cached,
    coalesce(sum(l.output_tokens), 0) AS output, coalesce(sum(l.cost_usd_micros), 0) AS cost
  FROM marked LEFT JOIN ledger_entries l ON l.task_id = marked.task_id
)
UPDATE batches b SET parts = parts + 1, cost_usd_micros = cost_usd_micros + cost,
  prompt_tokens = prompt_tokens + prompt, cached_tokens = cached_tokens + cached, output_tokens = output_tokens + output
FROM charged WHERE b.id = :id AND b.parts = :part AND charged.lines = :expected
RETURNING b.id
""")

_COUNT = sa.text("""
UPDATE batches SET completed = completed + :completed, failed = failed + :failed, unfinished = unfinished + :unfinished
WHERE id = :id
""")

UNFINISHED = frozenset({LineOutcome.EXPIRED, LineOutcome.CANCELLED})


async def add_part(
    connection: AsyncConnection,
    batch: Batch,
    outcomes: dict[int, LineOutcome],
    *,
    part: int,
    output_key: str | None,
    error_key: str | None,
    inserted: bool = False,
) -> None:
    """Note a part of the results, and its lines (line → outcome) as written. Raises: OvertakenError.

    `inserted`: `advance` has put the lines in with this part.
    """
    rows = [] if inserted else [{"line": line, "outcome": outcome} for line, outcome in outcomes.items()]
    values = {"id": batch.id, "part": part, "rows": orjson.dumps(rows).decode(), "expected": len(rows)}
    if (await connection.execute(_WRITE, values)).one_or_none() is None:
        raise OvertakenError(batch.id)
    completed = sum(outcome is LineOutcome.COMPLETED for outcome in outcomes.values())
    unfinished = sum(outcome in UNFINISHED for outcome in outcomes.values())
    counts = {"completed": completed, "failed": len(outcomes) - completed, "unfinished": unfinished}
    await connection.execute(_COUNT, {"id": batch.id, **counts})
    await connection.execute(
        batch_parts.insert().values(
            batch_id=batch.id, number=part, output_key=output_key, error_key=error_key
        )
    )


async def list_parts(connection: AsyncConnection, batch_id: str) -> list[tuple[str | None, str | None]]:
    """List the blobs of a batch's results, in order: (of the output, of the errors)."""
    query = sa.select(batch_parts).where(batch_parts.c.batch_id == batch_id).order_by(batch_parts.c.number)
    return [(row.output_key, row.error_key) for row in await connection.execute(query)]


_LIVE = sa.text("""
SELECT i.task_id FROM batch_items i JOIN tasks t ON t.id = i.task_id
WHERE i.batch_id = :id AND i.part IS NULL AND t.state IN ('queued', 'in_progress')
""")


async def find_live(connection: AsyncConnection, batch_id: str) -> list[str]:
    """List a batch's tasks that are not final and not being cancelled."""
    return [row.task_id for row in await connection.execute(_LIVE, {"id": batch_id})]


_FINAL_WITH_PARTS = sa.text("""
SELECT DISTINCT p.batch_id FROM batch_parts p JOIN batches b ON b.id = p.batch_id
WHERE b.state IN ('failed', 'completed', 'expired', 'cancelled') LIMIT :limit
""")


async def find_leftovers(connection: AsyncConnection, *, limit: int) -> list[str]:
    """List final batches whose parts were put together into files and are still there."""
    return [row.batch_id for row in await connection.execute(_FINAL_WITH_PARTS, {"limit": limit})]


async def forget_parts(connection: AsyncConnection, batch_id: str) -> None:
    """Delete the rows of parts whose blobs are gone."""
    await connection.execute(batch_parts.delete().where(batch_parts.c.batch_id == batch_id))


_PURGE = sa.text("""
DELETE FROM batch_items WHERE batch_id IN (
  SELECT id FROM batches b WHERE EXISTS (SELECT 1 FROM batch_items i WHERE i.batch_id = b.id)
    AND coalesce(completed_at, cancelled_at, expired_at) < now() - make_interval(secs => :older_s) LIMIT :limit)
""")


async def purge_items(connection: AsyncConnection, *, older_s: float, limit: int) -> int:
    """Delete the lines of so many batches that ended longer ago than that; return how many lines."""
    values: dict[str, Any] = {"older_s": older_s, "limit": limit}
    return (await connection.execute(_PURGE, values)).rowcount
