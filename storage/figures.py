"""Counts over all tasks that are not final, for whoever watches the platform."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.lanes import Lane, LengthClass, Priority


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """One lane now."""

    queued: int
    running: int
    oldest_s: float  # age of the task that waits longest; 0 without one


@dataclass(frozen=True, slots=True)
class OutboxFigures:
    """What the broker is not known to have."""

    tasks: int
    lag_s: float  # age of the oldest


# What waits is counted by triggers; ages are read at the heads: of each tenant the task that goes next, which is
# the oldest but for what others may overtake (`core.ranking`: batch work by as much as MOST_DELAY_S).
_LANES = sa.text("""
WITH RECURSIVE g AS (
  (SELECT model, priority, tenant_id, length_class FROM tasks WHERE state = 'queued' AND published_at IS NULL
   ORDER BY model, priority, tenant_id, length_class LIMIT 1)
  UNION ALL
  SELECT n.* FROM g, LATERAL (
    SELECT model, priority, tenant_id, length_class FROM tasks t WHERE state = 'queued' AND published_at IS NULL
      AND (t.model, t.priority, t.tenant_id, t.length_class) > (g.model, g.priority, g.tenant_id, g.length_class)
    ORDER BY t.model, t.priority, t.tenant_id, t.length_class LIMIT 1) n
)
SELECT model, length_class, priority, sum(queued)::int AS queued, sum(running)::int AS running,
  coalesce(max(oldest_s), 0)::float8 AS oldest_s
FROM (
  SELECT model, length_class, priority, tasks AS queued, 0 AS running, 0 AS oldest_s FROM backlogs
  UNION ALL
  SELECT model, length_class, priority, tasks, 0, 0 FROM queue_deltas
  UNION ALL
  SELECT model, length_class, priority, 0, 0, extract(epoch FROM now() - h.created_at) FROM g, LATERAL (
    SELECT created_at FROM tasks t WHERE state = 'queued' AND published_at IS NULL AND t.model = g.model
      AND t.priority = g.priority AND t.tenant_id = g.tenant_id AND t.length_class = g.length_class
    ORDER BY t.rank_at, t.id LIMIT 1) h
  UNION ALL
  SELECT model, length_class, priority, 0, 0, extract(epoch FROM now() - min(created_at))
  FROM tasks WHERE state = 'queued' AND published_at IS NOT NULL GROUP BY 1, 2, 3
  UNION ALL
  SELECT model, length_class, priority, 0, count(*), 0
  FROM tasks WHERE state IN ('cancelling', 'in_progress') GROUP BY 1, 2, 3
) AS counted GROUP BY 1, 2, 3 HAVING sum(queued) > 0 OR sum(running) > 0
""")

_OUTBOX = sa.text("""
SELECT greatest(0, (SELECT coalesce(sum(tasks), 0) FROM backlogs) + (SELECT coalesce(sum(tasks), 0) FROM queue_deltas)
    - (SELECT count(*) FROM tasks WHERE state = 'queued' AND published_at IS NOT NULL))::int AS tasks,
  coalesce(extract(epoch FROM now() - (SELECT created_at FROM tasks
    WHERE state = 'queued' AND published_at IS NULL ORDER BY id LIMIT 1)), 0)::float8 AS lag_s
""")


@dataclass(frozen=True, slots=True)
class RecentFigures:
    """What ended lately, by priority. Times in ms; None where nothing has one."""

    ended: int
    failed: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    total_p50_ms: float | None
    output_tokens: int
    cost_usd_micros: int


_RECENT = sa.text("""
SELECT t.priority, count(*)::int AS ended, (count(*) FILTER (WHERE t.state = 'failed'))::int AS failed,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY t.ttft_ms) AS ttft_p50,
  percentile_cont(0.99) WITHIN GROUP (ORDER BY t.ttft_ms) AS ttft_p99,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM t.finished_at - t.created_at) * 1000) AS total_p50,
  coalesce(sum(t.usage_output_tokens), 0)::bigint AS output_tokens,
  coalesce(sum(l.cost_usd_micros), 0)::bigint AS cost
FROM tasks t LEFT JOIN ledger_entries l ON l.task_id = t.id
WHERE t.finished_at > now() - make_interval(secs => :window_s) AND t.purged_at IS NULL GROUP BY 1
""")


async def read_recent(connection: AsyncConnection, *, window_s: float) -> dict[Priority, RecentFigures]:
    """Sum up what ended within that time."""
    return {
        Priority(row.priority): RecentFigures(
            row.ended,
            row.failed,
            row.ttft_p50,
            row.ttft_p99,
            row.total_p50,
            row.output_tokens,
            row.cost,
        )
        for row in await connection.execute(_RECENT, {"window_s": window_s})
    }


async def read_lanes(connection: AsyncConnection) -> dict[Lane, LaneFigures]:
    """Count by lane; a lane without open tasks is left out."""
    return {
        Lane(row.model, LengthClass(row.length_class), Priority(row.priority)): LaneFigures(
            row.queued, row.running, max(0.0, row.oldest_s)
        )
        for row in await connection.execute(_LANES)
    }


async def read_outbox(connection: AsyncConnection) -> OutboxFigures:
    """Count what waits to be published."""
    row = (await connection.execute(_OUTBOX)).one()
    return OutboxFigures(row.tasks, max(0.0, row.lag_s))
