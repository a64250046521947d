"""Tasks of every tenant, for administrators."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure, is_dead
from core.states import TaskState
from services.change import ConflictError, MissingError, changing
from services.manage_tenants import require_tenant
from services.retry import retry_in
from storage import retention, tasks
from storage.audit import Actor
from storage.autocommit import autocommit
from storage.outbox import Outgoing
from storage.paging import Page
from storage.records import Task
from storage.retention import PurgedBodies


async def list_any(
    database: AsyncEngine,
    page: Page,
    *,
    tenant: str | None,
    model: str | None,
    states: Sequence[TaskState],
    dead: bool,
) -> tuple[list[Task], bool]:
    """List tasks and whether there are more; `dead`: out of attempts. Raises: MissingError for an unknown tenant."""
    async with autocommit(database) as connection:
        tenant_id = (await require_tenant(connection, tenant)).id if tenant is not None else None
        found = await tasks.list_tasks(
            connection,
            tenant_id,
            limit=page.limit + 1,
            newest_first=page.newest_first,
            after=page.after,
            model=model,
            states=[TaskState.FAILED] if dead else states,
            failures=[failure for failure in Failure if is_dead(failure)] if dead else (),
        )
    return found[: page.limit], len(found) > page.limit


async def read_any(database: AsyncEngine, task_id: str) -> Task:
    """Read a task, whoever's it is. Raises: MissingError."""
    async with autocommit(database) as connection:
        found = await tasks.get_task(connection, None, task_id)
    if found is None:
        raise MissingError("task", task_id)
    return found


async def read_purged(database: AsyncEngine, task_id: str) -> PurgedBodies | None:
    """Read lengths and keyed hashes of a task's bodies that are gone; None while they are there."""
    async with autocommit(database) as connection:
        return await retention.get_purged(connection, task_id)


async def retry_any(database: AsyncEngine, actor: Actor, task_id: str) -> Outgoing:
    """Accept a failed task's request again for its tenant. Raises: MissingError, ConflictError."""
    task = await read_any(database, task_id)
    async with changing(database, actor) as change:
        again = await retry_in(change.connection, task_id, None)
        if again is None:
            what = "its body is past its retention" if task.purged else f"it is {task.state}, not failed"
            raise ConflictError("task_not_failed", f"The task can't be done again: {what}.")
        await change.record(
            "task.retry", task_id, tenant_id=task.tenant_id, after={"retried_as": again.task_id}
        )
        return again
