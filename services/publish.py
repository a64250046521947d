"""Note what the broker has, and find what it may have missed."""

from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Lane
from storage import outbox
from storage.autocommit import autocommit
from storage.outbox import Outgoing


async def note_published(database: AsyncEngine, sent: Sequence[Outgoing]) -> None:
    """Mark tasks as published."""
    async with autocommit(database) as connection:
        await outbox.mark_published(connection, {one.task_id: one.turned_back for one in sent})


async def count_expected(database: AsyncEngine, *, older_s: float) -> tuple[dict[Lane, int], int]:
    """Count what the broker should have: published tasks still queued, by lane, and running ones."""
    async with autocommit(database) as connection:
        waiting = await outbox.count_published(connection, older_s=older_s)
        return waiting, await outbox.count_running(connection)


async def forget_published(database: AsyncEngine, missing: Mapping[Lane, int], *, older_s: float) -> int:
    """Have the outbox publish so many of each lane's oldest tasks again; return how many."""
    async with database.begin() as connection:
        return sum(
            [
                await outbox.forget_published(connection, lane, older_s=older_s, limit=count)
                for lane, count in missing.items()
            ]
        )
