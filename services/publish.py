"""Note what the broker has, and find what it may have missed."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import outbox
from storage.outbox import Outgoing


async def note_published(database: AsyncEngine, task_ids: Sequence[str]) -> None:
    """Mark tasks as published."""
    async with database.begin() as connection:
        await outbox.mark_published(connection, task_ids)


async def find_unpublished(database: AsyncEngine, *, older_s: float, limit: int) -> list[Outgoing]:
    """List queued tasks that were committed but never reached the broker."""
    async with database.connect() as connection:
        return await outbox.find_unpublished(connection, older_s=older_s, limit=limit)


async def forget_published(database: AsyncEngine) -> int:
    """Publish every queued task again, after the broker lost its queues; return how many."""
    async with database.begin() as connection:
        return await outbox.forget_published(connection)
