"""Cancel tasks, or end queued ones for another reason."""

from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import RULES, Failure
from core.states import TaskState
from storage import tasks


async def cancel(database: AsyncEngine, tenant_id: str, task_id: str) -> TaskState | None:
    """Cancel a task: queued ones end at once, running ones are marked. None: nothing to change."""
    async with database.begin() as connection:
        return (await tasks.request_cancel(connection, tenant_id, [task_id])).get(task_id)


async def give_up(database: AsyncEngine, task_id: str, failure: Failure) -> bool:
    """Fail a task that nobody claimed; False when it was claimed meanwhile."""
    async with database.begin() as connection:
        return await tasks.end_queued(connection, task_id, TaskState.FAILED, failure, RULES[failure].message)
