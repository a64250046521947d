"""Read tasks for their owner."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure
from core.states import TaskState
from storage import tasks
from storage.autocommit import autocommit
from storage.records import Task


async def look_up(database: AsyncEngine, tenant_id: str, task_id: str) -> Task | None:
    """Read one task; None for an unknown id and for another tenant's alike."""
    async with autocommit(database) as connection:
        return await tasks.get_task(connection, tenant_id, task_id)


async def read_response(database: AsyncEngine, task_id: str) -> str | None:
    """Read a task's response body as JSON text."""
    async with autocommit(database) as connection:
        return await tasks.get_response(connection, task_id)


async def list_page(
    database: AsyncEngine,
    tenant_id: str,
    *,
    limit: int,
    newest_first: bool,
    after: str | None,
    states: Sequence[TaskState],
    failures: Sequence[Failure],
) -> tuple[list[Task], bool] | None:
    """List a page and say whether there is more; None when `after` is not one of the tenant's tasks."""
    async with autocommit(database) as connection:
        if after is not None and await tasks.get_task(connection, tenant_id, after) is None:
            return None
        found = await tasks.list_tasks(
            connection,
            tenant_id,
            limit=limit + 1,
            newest_first=newest_first,
            after=after,
            states=states,
            failures=failures,
        )
    return found[:limit], len(found) > limit
