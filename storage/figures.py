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


# two partial indexes, one each
_LANES = sa.text("""
SELECT model, length_class, priority, sum(queued)::int AS queued, sum(running)::int AS running,
  max(oldest_s)::float8 AS oldest_s
FROM (
  SELECT model, length_class, priority, count(*) AS queued, 0 AS running,
    extract(epoch FROM now() - min(created_at)) AS oldest_s
  FROM tasks WHERE state = 'queued' GROUP BY 1, 2, 3
  UNION ALL
  SELECT model, length_class, priority, 0, count(*), 0
  FROM tasks WHERE state IN ('cancelling', 'in_progress') GROUP BY 1, 2, 3
) AS counted GROUP BY 1, 2, 3
""")

_OUTBOX = sa.text("""
SELECT count(*)::int AS tasks, coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS lag_s
FROM tasks WHERE state = 'queued' AND published_at IS NULL
""")


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
