"""Accept tasks: one transaction, and nothing published before it has committed."""

from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.hold import insert_within_budgets
from services.once import IdempotencyKey, find_earlier, remember
from storage import grants, tasks
from storage.autocommit import autocommit
from storage.idempotency import Earlier
from storage.records import NewTask, Task


class TooManyOpenError(Exception):
    """As many tasks of the tenant for the model are queued or running as its grant allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


async def submit(
    database: AsyncEngine,
    new: NewTask,
    idempotency: IdempotencyKey | None = None,
    answer: Callable[[Task], Earlier] | None = None,
) -> Task | Earlier:
    """Accept a task and return it, or what was accepted earlier under the same key.

    `answer` says what the caller will be told, to be told again. Raises: KeyReusedError, KeyInFlightError,
    TooManyOpenError, BudgetExhaustedError.
    """
    if idempotency is None and new.max_open_tasks is None:
        async with autocommit(database) as connection:
            return await _insert(connection, new)
    async with database.begin() as connection:
        if idempotency is None:
            return await _insert(connection, new)
        earlier = await find_earlier(connection, new.caller.tenant_id, idempotency)
        if earlier is not None:
            return earlier
        task = await _insert(connection, new)
        told = answer(task) if answer else Earlier(task.id, 202, None)
        await remember(connection, new.caller.tenant_id, idempotency, told, task_id=task.id)
        return task


async def _insert(connection: AsyncConnection, new: NewTask) -> Task:
    if new.max_open_tasks is not None:
        await _require_room(connection, new, new.max_open_tasks)
    times = await insert_within_budgets(connection, [new])
    return Task.accepted(new, *times[new.id])


async def _require_room(connection: AsyncConnection, new: NewTask, limit: int) -> None:
    tenant_id, model = new.caller.tenant_id, new.lane.model
    # under the grant's lock no two submits count the same tasks, on whichever API process they are
    await grants.get_grant(connection, tenant_id, model)
    if await tasks.count_open(connection, model, tenant_id) >= limit:
        raise TooManyOpenError(limit)
