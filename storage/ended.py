"""Ended tasks as logs, metrics and traces tell of them: lengths and keyed hashes, never a text.

Units: `*_s` seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.digests import pads_of
from core.failures import Failure
from core.lanes import Lane, LengthClass, Priority
from core.pricing import Usage
from core.states import TaskState
from storage.ledger import USED, used_of
from storage.retention import HASH


@dataclass(frozen=True, slots=True)
class Ended:
    """A final task, whoever ended it."""

    task_id: str
    tenant_id: str
    tenant_class: str
    lane: Lane
    state: TaskState
    attempt: int  # the last one; 0: it never ran
    worker: str | None
    finish_reason: str | None
    failure: Failure | None
    prompt_tokens: int  # as counted at admission
    usage: Usage
    cost_usd_micros: int  # 0 where nothing is charged
    ttft_ms: int | None
    preemptions: int  # times it lent its slot
    created_at: datetime
    finished_at: datetime
    traceparent: str | None
    batch_id: str | None
    request_bytes: int | None  # None: the body is gone
    request_hash: str | None  # HMAC-SHA256 in hex


_READ = sa.text(f"""
SELECT t.id, t.tenant_id, n.class AS tenant_class, t.model, t.length_class, t.priority, t.state, t.attempt, t.worker,
  t.finish_reason, t.failure, t.prompt_tokens, {USED}, t.ttft_ms, t.preemptions, t.created_at,
  t.finished_at, t.traceparent, l.cost_usd_micros, i.batch_id, octet_length(p.request) AS request_bytes,
  encode({HASH.format(text="p.request")}, 'hex') AS request_hash
FROM tasks t JOIN tenants n ON n.id = t.tenant_id
  LEFT JOIN ledger_entries l ON l.task_id = t.id
  LEFT JOIN task_payloads p ON p.task_id = t.id
  LEFT JOIN batch_items i ON i.task_id = t.id
WHERE t.id = ANY(:ids) AND t.finished_at IS NOT NULL
ORDER BY t.id
""").bindparams(sa.bindparam("ids", type_=sa.ARRAY(sa.Text)))


async def read_ended(connection: AsyncConnection, task_ids: Sequence[str], *, hash_key: bytes) -> list[Ended]:
    """Read those of the tasks that are final. The hash is made in the database: no text leaves it."""
    inner, outer = pads_of(hash_key)
    rows = await connection.execute(_READ, {"ids": list(task_ids), "inner": inner, "outer": outer})
    return [
        Ended(
            task_id=row.id,
            tenant_id=row.tenant_id,
            tenant_class=row.tenant_class,
            lane=Lane(row.model, LengthClass(row.length_class), Priority(row.priority)),
            state=TaskState(row.state),
            attempt=row.attempt,
            worker=row.worker,
            finish_reason=row.finish_reason,
            failure=Failure(row.failure) if row.failure else None,
            prompt_tokens=row.prompt_tokens,
            usage=used_of(row).usage,
            cost_usd_micros=row.cost_usd_micros or 0,
            ttft_ms=row.ttft_ms,
            preemptions=row.preemptions,
            created_at=row.created_at,
            finished_at=row.finished_at,
            traceparent=row.traceparent,
            batch_id=row.batch_id,
            request_bytes=row.request_bytes,
            request_hash=row.request_hash,
        )
        for row in rows
    ]
