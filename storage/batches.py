"""Rows of batches: accepting and reading them, and moving them from state to state, each by a compare-and-set."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.batches import BatchState
from core.pricing import Usage
from storage.records import Caller


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch about to be accepted."""

    id: str
    caller: Caller
    endpoint: str
    completion_window: str
    window_s: float
    metadata: dict[str, str]
    output_ttl_s: float
    input_file_id: str
    input_bytes: int
    in_file_order: bool = False  # lines run as they stand, whatever their prompts share
    webhook: str | None = None  # the URL that is told of the end


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its owner may see it, counts and usage up to this moment."""

    id: str
    caller: Caller
    endpoint: str
    completion_window: str
    metadata: dict[str, str]
    output_ttl_s: float
    state: BatchState
    created_at: datetime
    expires_at: datetime
    at: dict[BatchState, datetime | None]  # when it came into the other states
    errors: list[dict[str, Any]] | None
    input_file_id: str
    input_bytes: int
    in_file_order: bool
    cursor_bytes: int
    cursor_line: int
    model: str | None
    total: int
    completed: int
    failed: int
    unfinished: int
    usage: Usage
    cost_usd_micros: int
    parts: int
    output_file_id: str | None
    error_file_id: str | None
    left_s: float  # of its window, when this was read; below 0 once it has passed
    unwritten: int  # lines that are tasks, or refused, and in no part yet
    ready: int  # of those, the ones that ended

    @property
    def expanded(self) -> bool:
        """Whether every line was read."""
        return self.cursor_bytes >= self.input_bytes

    @property
    def late(self) -> bool:
        """Whether its window has passed."""
        return self.left_s <= 0


class Work(Enum):
    """What open batches are looked at for."""

    VALIDATE = "validate"
    EXPAND = "expand"
    TEND = "tend"  # results, cancels, ends


_INSERT = sa.text("""
INSERT INTO batches (id, tenant_id, key_id, endpoint, completion_window, metadata, output_ttl_s, expires_at,
                     input_file_id, input_bytes, in_file_order, webhook)
VALUES (:id, :tenant_id, :key_id, :endpoint, :completion_window, CAST(:metadata AS jsonb), :output_ttl_s,
        now() + make_interval(secs => :window_s), :input_file_id, :input_bytes, :in_file_order, :webhook)
""")


async def insert_batch(connection: AsyncConnection, new: NewBatch) -> None:
    """Accept a batch."""
    values = {
        "id": new.id,
        "tenant_id": new.caller.tenant_id,
        "key_id": new.caller.key_id,
        "endpoint": new.endpoint,
        "completion_window": new.completion_window,
        "metadata": orjson.dumps(new.metadata).decode(),
        "output_ttl_s": new.output_ttl_s,
        "window_s": new.window_s,
        "input_file_id": new.input_file_id,
        "input_bytes": new.input_bytes,
        "in_file_order": new.in_file_order,
        "webhook": new.webhook,
    }
    await connection.execute(_INSERT, values)


# What is in no part yet is counted from its rows: a window of them at most, and none once a batch is final.
_SELECT = """
SELECT b.*, CAST(extract(epoch FROM b.expires_at - now()) AS float8) AS left_s, w.* FROM batches b, LATERAL (
  SELECT count(*) AS unwritten, count(*) FILTER (WHERE t.id IS NULL OR t.finished_at IS NOT NULL) AS ready,
    count(*) FILTER (WHERE t.state = 'completed') AS now_completed,
    coalesce(sum(l.prompt_tokens), 0) AS now_prompt, coalesce(sum(l.cached_tokens), 0) AS now_cached,
    coalesce(sum(l.output_tokens), 0) AS now_output, coalesce(sum(l.cost_usd_micros), 0) AS now_cost
  FROM batch_items i LEFT JOIN tasks t ON t.id = i.task_id LEFT JOIN ledger_entries l ON l.task_id = i.task_id
  WHERE i.batch_id = b.id AND i.part IS NULL) w
WHERE {which}
"""
_OPEN = "b.state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
_WORK = {
    Work.VALIDATE: "b.state = 'validating'",
    Work.EXPAND: "b.state = 'in_progress' AND b.cursor_bytes < b.input_bytes",
    Work.TEND: _OPEN,
}
_TO_DO = {
    work: sa.text(_SELECT.format(which=f"{_OPEN} AND {which} ORDER BY b.id LIMIT :limit"))
    for work, which in _WORK.items()
}
_ONE = sa.text(_SELECT.format(which="b.tenant_id = :tenant_id AND b.id = :id"))
_PAGE = sa.text(
    _SELECT.format(
        which="b.tenant_id = :tenant_id AND (CAST(:after AS text) IS NULL OR b.id < :after)"
        " ORDER BY b.id DESC LIMIT :limit"
    )
)


async def list_to_do(connection: AsyncConnection, work: Work, *, limit: int) -> list[Batch]:
    """List every tenant's batches that some work may be due for, oldest first."""
    return [_batch(row) for row in await connection.execute(_TO_DO[work], {"limit": limit})]


async def get_batch(connection: AsyncConnection, tenant_id: str, batch_id: str) -> Batch | None:
    """Read one batch of a tenant; another tenant's id is as unknown as a made-up one."""
    row = (await connection.execute(_ONE, {"tenant_id": tenant_id, "id": batch_id})).one_or_none()
    return _batch(row) if row else None


async def list_batches(
    connection: AsyncConnection, tenant_id: str, *, limit: int, after: str | None
) -> list[Batch]:
    """List a tenant's batches, newest first; `after` is exclusive."""
    rows = await connection.execute(_PAGE, {"tenant_id": tenant_id, "after": after, "limit": limit})
    return [_batch(row) for row in rows]


_MOVE = """
UPDATE batches SET state = '{after}', {after}_at = now(){more}
WHERE id = :id AND state IN ({before}) RETURNING id
"""
_BEGIN = sa.text(
    _MOVE.format(after="in_progress", before="'validating'", more=", total = :total, model = :model")
)
_REFUSE = sa.text(
    _MOVE.format(after="failed", before="'validating'", more=", errors = CAST(:errors AS jsonb)")
)
_CANCEL = sa.text(
    _MOVE.format(after="cancelling", before="'validating', 'in_progress'", more="").replace(
        "RETURNING", "AND tenant_id = :tenant_id RETURNING"
    )
)
_FINALIZE = sa.text(_MOVE.format(after="finalizing", before="'in_progress'", more=""))
_ENDS = {
    state: sa.text(
        _MOVE.format(
            after=state,
            before="'validating', 'in_progress', 'finalizing', 'cancelling'",
            more=", output_file_id = :output_file_id, error_file_id = :error_file_id",
        )
        # parts written meanwhile by another would be missing from the files
        .replace("RETURNING", "AND parts = :parts RETURNING")
    )
    for state in (BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED)
}


async def begin(connection: AsyncConnection, batch_id: str, *, total: int, model: str) -> bool:
    """Move a valid batch on; False when it was cancelled meanwhile."""
    return await _moved(connection, _BEGIN, {"id": batch_id, "total": total, "model": model})


async def refuse(connection: AsyncConnection, batch_id: str, errors: list[dict[str, Any]]) -> bool:
    """End a batch whose input is none; False when it was cancelled meanwhile."""
    return await _moved(connection, _REFUSE, {"id": batch_id, "errors": orjson.dumps(errors).decode()})


async def ask_cancel(connection: AsyncConnection, tenant_id: str, batch_id: str) -> bool:
    """Have a batch cancelled; False when there is nothing to cancel, or no longer."""
    return await _moved(connection, _CANCEL, {"id": batch_id, "tenant_id": tenant_id})


async def finalize(connection: AsyncConnection, batch_id: str) -> bool:
    """Note that every line of a running batch is written."""
    return await _moved(connection, _FINALIZE, {"id": batch_id})


async def end(
    connection: AsyncConnection,
    batch_id: str,
    state: BatchState,
    *,
    parts: int,
    output_file_id: str | None,
    error_file_id: str | None,
) -> bool:
    """End a batch with its files, made of so many parts; False when another did, or wrote further parts."""
    values = {
        "id": batch_id,
        "parts": parts,
        "output_file_id": output_file_id,
        "error_file_id": error_file_id,
    }
    return await _moved(connection, _ENDS[state], values)


async def _moved(connection: AsyncConnection, statement: sa.TextClause, values: dict[str, Any]) -> bool:
    return (await connection.execute(statement, values)).one_or_none() is not None


def _batch(row: sa.Row[Any]) -> Batch:
    refused_or_ended = row.ready - row.now_completed
    return Batch(
        id=row.id,
        caller=Caller(row.key_id, row.tenant_id),
        endpoint=row.endpoint,
        completion_window=row.completion_window,
        metadata=row.metadata,
        output_ttl_s=row.output_ttl_s,
        state=BatchState(row.state),
        created_at=row.created_at,
        expires_at=row.expires_at,
        at={state: getattr(row, f"{state}_at") for state in BatchState if state is not BatchState.VALIDATING},
        errors=row.errors,
        input_file_id=row.input_file_id,
        input_bytes=row.input_bytes,
        in_file_order=row.in_file_order,
        cursor_bytes=row.cursor_bytes,
        cursor_line=row.cursor_line,
        model=row.model,
        total=row.total,
        completed=row.completed + row.now_completed,
        failed=row.failed + refused_or_ended,
        unfinished=row.unfinished,
        usage=Usage(
            row.prompt_tokens + int(row.now_prompt),
            row.cached_tokens + int(row.now_cached),
            row.output_tokens + int(row.now_output),
        ),
        cost_usd_micros=row.cost_usd_micros + int(row.now_cost),
        parts=row.parts,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        left_s=row.left_s,
        unwritten=row.unwritten,
        ready=row.ready,
    )
