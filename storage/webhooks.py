"""Webhooks: deliveries with their tries, and URLs that asked for no more.

A delivery is claimed by moving its next time into the future: who claimed it and died has it tried again, under
the same id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.batches import FINAL, BatchState
from core.states import TaskState
from storage.tables import one_of, webhook_attempts, webhook_deliveries, webhooks_disabled


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A final task whose owner is to be told."""

    id: str
    tenant_id: str
    url: str
    state: TaskState
    finish_reason: str | None
    finished_at: datetime
    metadata: dict[str, str]
    response_id: str | None


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """A final batch whose owner is to be told."""

    id: str
    tenant_id: str
    url: str
    state: BatchState
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one URL; `attempts` includes the one claimed now."""

    id: str
    tenant_id: str
    url: str
    body: str
    attempts: int
    secret_ids: Sequence[str]  # those in force
    task_id: str | None = None  # None: it tells of something else
    traceparent: str | None = None  # the task's
    batch_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one try."""

    status_code: int | None  # None: there was no answer
    error: str | None
    duration_ms: int


_FIND_ENDED = sa.text("""
SELECT t.id, t.tenant_id, t.webhook, t.state, t.finish_reason, t.finished_at, t.metadata, r.id AS response_id
FROM tasks t LEFT JOIN responses r ON r.task_id = t.id
WHERE t.webhook IS NOT NULL AND t.webhook_at IS NULL AND t.finished_at IS NOT NULL
ORDER BY t.finished_at LIMIT :limit FOR UPDATE OF t SKIP LOCKED
""")


async def lock_ended(connection: AsyncConnection, *, limit: int) -> list[EndedTask]:
    """Lock final tasks whose webhook has no delivery yet, oldest end first."""
    rows = await connection.execute(_FIND_ENDED, {"limit": limit})
    return [
        EndedTask(
            row.id,
            row.tenant_id,
            row.webhook,
            TaskState(row.state),
            row.finish_reason,
            row.finished_at,
            row.metadata,
            row.response_id,
        )
        for row in rows
    ]


_FIND_ENDED_BATCHES = sa.text(f"""
SELECT id, tenant_id, webhook, state, coalesce(completed_at, failed_at, expired_at, cancelled_at) AS ended_at
FROM batches WHERE webhook IS NOT NULL AND webhook_at IS NULL
  AND {one_of("state", FINAL)}
ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
""")


async def lock_ended_batches(connection: AsyncConnection, *, limit: int) -> list[EndedBatch]:
    """Lock final batches whose webhook has no delivery yet, oldest first."""
    rows = await connection.execute(_FIND_ENDED_BATCHES, {"limit": limit})
    return [
        EndedBatch(row.id, row.tenant_id, row.webhook, BatchState(row.state), row.ended_at) for row in rows
    ]


_QUEUED = {
    table: sa.text(f"UPDATE {table} SET webhook_at = now() WHERE id = ANY(:ids)").bindparams(
        sa.bindparam("ids", type_=sa.ARRAY(sa.Text))
    )
    for table in ("tasks", "batches")
}


async def insert_deliveries(connection: AsyncConnection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert deliveries (id, tenant_id, task_id, batch_id, url, type, body); note that whose end it is has one."""
    await connection.execute(webhook_deliveries.insert(), list(rows))
    for table, column in (("tasks", "task_id"), ("batches", "batch_id")):
        if ids := [row[column] for row in rows if row[column]]:
            await connection.execute(_QUEUED[table], {"ids": ids})


# Each tenant's oldest, so that one with many due or a slow receiver takes no more than its share of the places.
# `waiting` hops from tenant to tenant along the index; it does not read what they have.
_CLAIM = sa.text("""
WITH RECURSIVE waiting AS (
  (SELECT tenant_id FROM webhook_deliveries WHERE next_at IS NOT NULL ORDER BY tenant_id LIMIT 1)
  UNION ALL
  SELECT (SELECT d.tenant_id FROM webhook_deliveries d WHERE d.next_at IS NOT NULL AND d.tenant_id > w.tenant_id
          ORDER BY d.tenant_id LIMIT 1)
  FROM waiting w WHERE w.tenant_id IS NOT NULL
), due AS (
  SELECT d.id, d.next_at, row_number() OVER (PARTITION BY w.tenant_id ORDER BY d.next_at) AS nth
  FROM waiting w CROSS JOIN LATERAL (
    SELECT id, next_at FROM webhook_deliveries
    WHERE tenant_id = w.tenant_id AND next_at <= now() ORDER BY next_at LIMIT :per_tenant) d
  WHERE w.tenant_id <> ALL(:busy)
), chosen AS (
  SELECT d.id FROM webhook_deliveries d JOIN due USING (id) WHERE d.next_at <= now()
  ORDER BY due.nth, due.next_at LIMIT :limit FOR UPDATE OF d SKIP LOCKED
)
UPDATE webhook_deliveries d SET attempts = attempts + 1, next_at = now() + make_interval(secs => :lease_s)
FROM chosen WHERE d.id = chosen.id
RETURNING d.id, d.tenant_id, d.url, d.body, d.attempts, d.task_id, d.batch_id,
  (SELECT t.traceparent FROM tasks t WHERE t.id = d.task_id) AS traceparent,
  array(SELECT s.id FROM webhook_secrets s WHERE s.tenant_id = d.tenant_id
        AND (s.expires_at IS NULL OR s.expires_at > now()) ORDER BY s.id DESC) AS secret_ids
""").bindparams(sa.bindparam("busy", type_=sa.ARRAY(sa.Text)))


async def claim(
    connection: AsyncConnection, *, limit: int, per_tenant: int, busy: Sequence[str], lease_s: float
) -> list[Delivery]:
    """Claim deliveries that are due, each tenant's oldest first, and count the try; none of `busy` tenants."""
    values = {"limit": limit, "per_tenant": per_tenant, "busy": list(busy), "lease_s": lease_s}
    rows = await connection.execute(_CLAIM, values)
    return [
        Delivery(
            row.id,
            row.tenant_id,
            row.url,
            row.body,
            row.attempts,
            row.secret_ids,
            row.task_id,
            row.traceparent,
            row.batch_id,
        )
        for row in rows
    ]


_SETTLE = sa.text("""
UPDATE webhook_deliveries SET state = :state, next_at = now() + make_interval(secs => :retry_s)
WHERE id = :id AND attempts = :attempt AND state = 'pending'
""")


async def settle(
    connection: AsyncConnection, delivery: Delivery, tried: Tried, *, state: str, retry_s: float | None
) -> None:
    """Write a try to the log and what comes next; a try that was overtaken changes nothing but the log."""
    values = {"id": delivery.id, "attempt": delivery.attempts, "state": state, "retry_s": retry_s}
    await connection.execute(_SETTLE, values)
    await connection.execute(
        webhook_attempts.insert().values(
            delivery_id=delivery.id,
            attempt=delivery.attempts,
            status_code=tried.status_code,
            error=tried.error,
            duration_ms=tried.duration_ms,
        )
    )


_DISABLE = sa.text("""
WITH kept AS (
  INSERT INTO webhooks_disabled (id, tenant_id, url) VALUES (:id, :tenant_id, :url)
  ON CONFLICT (tenant_id, url) DO NOTHING
)
UPDATE webhook_deliveries SET state = 'disabled', next_at = NULL
WHERE tenant_id = :tenant_id AND url = :url AND state = 'pending'
""")


async def disable(connection: AsyncConnection, new_id: str, tenant_id: str, url: str) -> None:
    """Send nothing more to a URL of a tenant."""
    await connection.execute(_DISABLE, {"id": new_id, "tenant_id": tenant_id, "url": url})


async def list_disabled(connection: AsyncConnection, tenant_id: str) -> list[tuple[str, str, datetime]]:
    """List (id, URL, since) of a tenant's disabled URLs."""
    query = sa.select(webhooks_disabled).where(webhooks_disabled.c.tenant_id == tenant_id)
    rows = await connection.execute(query.order_by(webhooks_disabled.c.id))
    return [(row.id, row.url, row.created_at) for row in rows]


async def enable(connection: AsyncConnection, tenant_id: str, disabled_id: str) -> bool:
    """Let a URL be used again; False when it was not disabled."""
    gone = await connection.execute(
        webhooks_disabled.delete().where(
            webhooks_disabled.c.id == disabled_id, webhooks_disabled.c.tenant_id == tenant_id
        )
    )
    return gone.rowcount > 0


async def which_disabled(
    connection: AsyncConnection, pairs: Sequence[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Say which of these (tenant, URL) are disabled."""
    place = sa.tuple_(webhooks_disabled.c.tenant_id, webhooks_disabled.c.url)
    rows = await connection.execute(
        sa.select(webhooks_disabled.c.tenant_id, webhooks_disabled.c.url).where(place.in_(list(pairs)))
    )
    return {(row.tenant_id, row.url) for row in rows}


_TRIES: sa.Label[Any] = sa.literal_column("""(
  SELECT json_agg(json_build_object('at', extract(epoch FROM a.created_at), 'status_code', a.status_code,
                                    'error', a.error, 'duration_ms', a.duration_ms) ORDER BY a.attempt)
  FROM webhook_attempts a WHERE a.delivery_id = webhook_deliveries.id)""").label("tries")


async def list_deliveries(
    connection: AsyncConnection,
    tenant_id: str,
    *,
    task_id: str | None = None,
    batch_id: str | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: int,
) -> list[Any]:
    """List a tenant's deliveries, newest first, each row with `tries`: its log, oldest first."""
    query = sa.select(webhook_deliveries, _TRIES).where(webhook_deliveries.c.tenant_id == tenant_id)
    if task_id is not None:
        query = query.where(webhook_deliveries.c.task_id == task_id)
    if batch_id is not None:
        query = query.where(webhook_deliveries.c.batch_id == batch_id)
    if state is not None:
        query = query.where(webhook_deliveries.c.state == state)
    if after is not None:
        query = query.where(webhook_deliveries.c.id < after)
    return list(await connection.execute(query.order_by(webhook_deliveries.c.id.desc()).limit(limit)))


_DELETE_OLD = sa.text("""
DELETE FROM webhook_deliveries WHERE id IN (
  SELECT id FROM webhook_deliveries WHERE next_at IS NULL AND created_at < now() - make_interval(secs => :older_s)
  ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)
""")


async def delete_old(connection: AsyncConnection, *, older_s: float, limit: int) -> int:
    """Delete ended deliveries made longer ago than that, with their log; return how many."""
    return (await connection.execute(_DELETE_OLD, {"older_s": older_s, "limit": limit})).rowcount
