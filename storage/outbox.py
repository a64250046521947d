"""The outbox: a queued task row is its own outbox entry until `published_at` says that the broker has it.

What is published and not claimed is little (the broker's queues are kept short), so it can be counted; what is
not published yet may be any number and is read by its heads only: `storage.queue_heads`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.lanes import Lane, LengthClass, Priority


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What the broker is told: an id, in a lane's queue."""

    task_id: str
    lane: Lane
    traceparent: str | None = None  # W3C, for who follows messages
    tenant_id: str = ""  # whose it is: some tenants' tasks are sent by the dispatcher alone
    turned_back: int = 0  # times that a claim found no place for it, when it was read


_MARK = sa.text("""
UPDATE tasks SET published_at = now() WHERE id IN (
  SELECT t.id FROM tasks t JOIN unnest(CAST(:ids AS text[]), CAST(:turned_back AS int[])) AS sent(id, turned_back)
    ON sent.id = t.id AND sent.turned_back = t.turned_back
  WHERE t.state = 'queued' AND t.published_at IS NULL
  ORDER BY t.id FOR UPDATE OF t SKIP LOCKED)  -- one that is being claimed needs no mark
""").bindparams(
    sa.bindparam("ids", type_=sa.ARRAY(sa.Text)), sa.bindparam("turned_back", type_=sa.ARRAY(sa.Integer))
)

_PUBLISHED = sa.text("""
SELECT model, length_class, priority, count(*) AS tasks FROM tasks
WHERE state = 'queued' AND published_at < now() - make_interval(secs => :older_s) GROUP BY 1, 2, 3
""")

_RUNNING = sa.text("SELECT count(*) FROM tasks WHERE state IN ('in_progress', 'cancelling')")

# The oldest: queues are first in, first out, so what is missing in a queue is what went in first.
_FORGET = sa.text("""
UPDATE tasks SET published_at = NULL WHERE id IN (
  SELECT id FROM tasks WHERE state = 'queued' AND model = :model AND length_class = :length_class
    AND priority = :priority AND published_at < now() - make_interval(secs => :older_s)
  ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)
""")


async def mark_published(connection: AsyncConnection, turned_back: Mapping[str, int]) -> None:
    """Note that the broker took these tasks, unless a claim has turned them back since: it took their messages."""
    await connection.execute(_MARK, {"ids": list(turned_back), "turned_back": list(turned_back.values())})


async def count_published(connection: AsyncConnection, *, older_s: float) -> dict[Lane, int]:
    """Count by lane the queued tasks that the broker should have had for longer than that."""
    rows = await connection.execute(_PUBLISHED, {"older_s": older_s})
    return {Lane(row.model, LengthClass(row.length_class), Priority(row.priority)): row.tasks for row in rows}


async def count_running(connection: AsyncConnection) -> int:
    """Count tasks whose messages workers hold."""
    return int((await connection.execute(_RUNNING)).scalar_one())


async def forget_published(connection: AsyncConnection, lane: Lane, *, older_s: float, limit: int) -> int:
    """Take a lane's oldest queued tasks as unpublished: the broker lost them. Claims fence duplicates."""
    values = {
        "model": lane.model,
        "length_class": lane.length_class,
        "priority": lane.priority,
        "older_s": older_s,
        "limit": limit,
    }
    return (await connection.execute(_FORGET, values)).rowcount
