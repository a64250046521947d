"""What the control process does to tasks that nobody tends: rescue, expire, purge."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure
from core.pricing import Usage
from core.states import TaskState
from storage import attempts, presence, tasks
from storage.records import Ending


@dataclass(frozen=True, slots=True)
class Rescued:
    """What one round did to expired leases."""

    requeued: list[str]
    ended: list[tuple[str, TaskState]]


# Counts the tokens that the lost attempts streamed: they were generated, so a cancel charges them.
CountStreamed = Callable[[str], Awaitable[int]]


async def rescue(database: AsyncEngine, *, limit: int, count_streamed: CountStreamed) -> Rescued:
    """Queue tasks with an expired lease again, or end them where cancel, deadline or attempts say so."""
    async with database.begin() as connection:
        requeued = await attempts.rescue(connection, limit=limit)
    endings = []
    async with database.begin() as connection:
        for task_id, attempt, prompt_tokens, late in await attempts.find_lost(connection, limit=limit):
            output_tokens = await count_streamed(task_id)
            usage = Usage(prompt_tokens if output_tokens else 0, 0, output_tokens)
            after, failure = TaskState.FAILED, Failure.WORKER_LOST
            if late:
                after, failure = TaskState.INCOMPLETE, Failure.DEADLINE
            endings.append(Ending(task_id, attempt, after, usage, failure=failure))
        ended = await attempts.settle(connection, endings) if endings else {}
    return Rescued(requeued, [(task_id, TaskState(state)) for task_id, state in ended.items()])


async def expire(database: AsyncEngine, *, limit: int) -> list[str]:
    """End queued tasks whose deadline passed; return their ids."""
    async with database.begin() as connection:
        return await tasks.expire_queued(
            connection, message="The deadline passed before the task could start.", limit=limit
        )


async def purge(database: AsyncEngine, *, retention_s: float, limit: int) -> int:
    """Delete the bodies of final tasks past their retention; return how many."""
    async with database.begin() as connection:
        return await tasks.purge_final(connection, retention_s, limit=limit)


async def forget_workers(database: AsyncEngine, *, unseen_s: float) -> int:
    """Delete the rows of workers that are gone; return how many."""
    async with database.begin() as connection:
        return await presence.delete_unseen_workers(connection, older_s=unseen_s)
