"""Read what is to be told of tasks that ended."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import ended
from storage.autocommit import autocommit
from storage.ended import Ended


async def read_ended(database: AsyncEngine, task_ids: Sequence[str], *, hash_key: bytes) -> list[Ended]:
    """Read those of the tasks that are final."""
    async with autocommit(database) as connection:
        return await ended.read_ended(connection, task_ids, hash_key=hash_key)
