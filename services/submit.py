"""Accept tasks: one transaction, and nothing published before it has committed."""

from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.once import IdempotencyKey, find_earlier, remember
from storage import tasks
from storage.autocommit import autocommit
from storage.idempotency import Earlier
from storage.records import NewTask, Task


async def submit(
    database: AsyncEngine,
    new: NewTask,
    idempotency: IdempotencyKey | None = None,
    answer: Callable[[Task], Earlier] | None = None,
) -> Task | Earlier:
    """Accept a task and return it, or what was accepted earlier under the same key.

    `answer` says what the caller will be told, to be told again. Raises: KeyReusedError, KeyInFlightError.
    """
    if idempotency is None:
        async with autocommit(database) as connection:
            return await _insert(connection, new)
    async with database.begin() as connection:
        earlier = await find_earlier(connection, new.caller.tenant_id, idempotency)
        if earlier is not None:
            return earlier
        task = await _insert(connection, new)
        told = answer(task) if answer else Earlier(task.id, 202, None)
        await remember(connection, new.caller.tenant_id, idempotency, told, task_id=task.id)
        return task


async def _insert(connection: AsyncConnection, new: NewTask) -> Task:
    times = await tasks.insert_tasks(connection, [new])
    return Task.accepted(new, *times[new.id])
