"""Do a failed task again: as a new task, since an ended one stays ended."""

from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.hold import hold_again, insert_within_budgets
from services.new_id import new_id
from storage import tasks
from storage.outbox import Outgoing


async def retry(database: AsyncEngine, task_id: str, tenant_id: str) -> Outgoing | None:
    """Accept a failed task's request again; None when there is no such failed task, or its body is purged.

    Raises: BudgetExhaustedError.
    """
    async with database.begin() as connection:
        return await retry_in(connection, task_id, tenant_id)


async def retry_in(connection: AsyncConnection, task_id: str, tenant_id: str | None) -> Outgoing | None:
    """Accept a failed task's request again, in a transaction of the caller's; `tenant_id` None: whoever's it is.

    Raises: BudgetExhaustedError.
    """
    dead = await tasks.get_dead(connection, task_id, tenant_id)
    if dead is None:
        return None
    again = await hold_again(connection, replace(dead, id=new_id("task")))
    await insert_within_budgets(connection, [again])
    return Outgoing(again.id, again.lane, tenant_id=again.caller.tenant_id)
