"""Note that bodies that are not to be stored have reached who asked for them."""

from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import retention
from storage.autocommit import autocommit


async def mark_delivered(database: AsyncEngine, task_ids: Iterable[str]) -> int:
    """Note the delivery of tasks' bodies; those to be stored are left as they are. Return how many are new to that."""
    async with autocommit(database) as connection:
        return await retention.mark_delivered(connection, list(task_ids))
