"""The outbox: a queued task row is its own outbox entry until `published_at` says that the broker has it."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.lanes import Lane, LengthClass, Priority


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What the broker is told: an id, in a lane's queue."""

    task_id: str
    lane: Lane


_MARK = sa.text("""
UPDATE tasks SET published_at = now() WHERE id = ANY(:ids) AND state = 'queued' AND published_at IS NULL
""").bindparams(sa.bindparam("ids", type_=sa.ARRAY(sa.Text)))

_UNPUBLISHED = sa.text("""
SELECT id, model, length_class, priority FROM tasks
WHERE state = 'queued' AND published_at IS NULL AND created_at < now() - make_interval(secs => :older_s)
ORDER BY id LIMIT :limit
""")

_FORGET = sa.text("UPDATE tasks SET published_at = NULL WHERE state = 'queued' AND published_at IS NOT NULL")

_QUEUED = sa.text("""
SELECT count(*) FROM tasks WHERE state = 'queued' AND published_at < now() - make_interval(secs => :older_s)
""")


async def mark_published(connection: AsyncConnection, task_ids: Sequence[str]) -> None:
    """Note that the broker took these tasks."""
    await connection.execute(_MARK, {"ids": list(task_ids)})


async def find_unpublished(connection: AsyncConnection, *, older_s: float, limit: int) -> list[Outgoing]:
    """List queued tasks that the broker may not know of, oldest first."""
    rows = await connection.execute(_UNPUBLISHED, {"older_s": older_s, "limit": limit})
    return [
        Outgoing(row.id, Lane(row.model, LengthClass(row.length_class), Priority(row.priority)))
        for row in rows
    ]


async def count_published(connection: AsyncConnection, *, older_s: float) -> int:
    """Count queued tasks that the broker has had for longer than that."""
    return int((await connection.execute(_QUEUED, {"older_s": older_s})).scalar_one())


async def forget_published(connection: AsyncConnection) -> int:
    """Take all queued tasks as unpublished: the broker lost its queues. Duplicates are fenced by claim."""
    return (await connection.execute(_FORGET)).rowcount
