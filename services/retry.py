"""Do a failed task again: as a new task, since an ended one stays ended."""

from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncEngine

from services.register import new_id
from storage import tasks
from storage.autocommit import autocommit
from storage.outbox import Outgoing
from storage.records import Task


async def retry(database: AsyncEngine, task_id: str, tenant_id: str | None = None) -> Outgoing | None:
    """Accept a failed task's request again; None when there is no such failed task, or its body is purged.

    `tenant_id` None: an operator asks, whoever's the task is.
    """
    async with database.begin() as connection:
        dead = await tasks.get_dead(connection, task_id, tenant_id)
        if dead is None:
            return None
        again = replace(dead, id=new_id("task"))
        await tasks.insert_tasks(connection, [again])
    return Outgoing(again.id, again.lane)


async def list_dead(database: AsyncEngine, *, limit: int) -> list[Task]:
    """List tasks of all tenants that ran out of attempts, newest first."""
    async with autocommit(database) as connection:
        return await tasks.list_dead(connection, limit=limit)
