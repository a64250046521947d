"""What the control process does to tasks that nobody tends: rescue, expire, purge."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure
from core.pricing import NOTHING, Usage, cost_usd_micros
from core.states import TaskState
from storage import attempts, idempotency, presence, retention, tasks, webhooks
from storage.autocommit import autocommit
from storage.due import Agenda, read_due
from storage.records import Ending, Lost, LostAttempt
from storage.retention import Periods


async def what_is_due(database: AsyncEngine) -> Agenda:
    """Say what the control process has to do now."""
    async with autocommit(database) as connection:
        return await read_due(connection)


@dataclass(frozen=True, slots=True)
class Rescued:
    """What one round did to expired leases."""

    lost: list[LostAttempt]  # whose tasks are queued again
    ended: list[tuple[str, TaskState, Failure | None]]  # id, state, and what its owner is told went wrong
    given_up: dict[str, LostAttempt]  # of the tasks that ended

    @property
    def requeued(self) -> list[str]:
        """The tasks that are queued again."""
        return [attempt.task_id for attempt in self.lost]


# Counts the tokens that the lost attempts streamed: they were generated, so a cancel charges them. None: it
# can't be told, and what the worker last said about it stands.
CountStreamed = Callable[[str], Awaitable[int | None]]


async def rescue(database: AsyncEngine, *, limit: int, count_streamed: CountStreamed) -> Rescued:
    """Queue tasks with an expired lease again, or end them where cancel, deadline or attempts say so."""
    async with database.begin() as connection:
        lost_attempts = await attempts.rescue(connection, limit=limit)
    async with autocommit(database) as connection:
        found = await attempts.find_lost(connection, limit=limit)
    # counted before anything is locked: Redis may be slow to answer
    streamed = {lost.task_id: await count_streamed(lost.task_id) for lost in found}
    endings: list[Ending] = []
    ended: dict[str, str] = {}
    given_up: dict[str, LostAttempt] = {}
    if streamed:
        async with database.begin() as connection:
            still = await attempts.find_lost(connection, limit=limit)
            endings = [_ending(lost, streamed[lost.task_id]) for lost in still if lost.task_id in streamed]
            ended = await attempts.settle(connection, endings)
            given_up = {lost.task_id: lost.told for lost in still if lost.task_id in ended}
    states = {task_id: TaskState(state) for task_id, state in ended.items()}
    failures = {ending.task_id: ending.failure for ending in endings}
    return Rescued(
        lost_attempts,
        [
            (task_id, state, None if state is TaskState.CANCELLED else failures[task_id])
            for task_id, state in states.items()
        ],
        given_up,
    )


def _ending(lost: Lost, streamed: int | None) -> Ending:
    usage, engine_us = lost.used.usage, lost.used.engine_us
    if streamed is not None:
        usage = Usage(lost.prompt_tokens, usage.cached_tokens, streamed) if streamed else NOTHING
    state, failure = TaskState.FAILED, Failure.WORKER_LOST
    if lost.late:
        state, failure = TaskState.INCOMPLETE, Failure.DEADLINE
    return Ending(
        lost.task_id,
        lost.attempt,
        state,
        usage,
        cost_usd_micros(usage, lost.tariff, engine_us),
        engine_us,
        lost.tariff.id,
        failure=failure,
    )


async def expire(database: AsyncEngine, *, limit: int) -> list[str]:
    """End queued tasks whose deadline passed; return their ids."""
    async with database.begin() as connection:
        return await tasks.expire_queued(
            connection, message="The deadline passed before the task could start.", limit=limit
        )


async def purge(database: AsyncEngine, periods: Periods, *, hash_key: bytes, limit: int) -> list[str]:
    """Delete bodies that are past their time, or delivered and not to be stored; return their tasks' ids."""
    async with database.begin() as connection:
        return await retention.purge(connection, periods, hash_key=hash_key, limit=limit)


async def forget_deliveries(database: AsyncEngine, *, older_s: float, limit: int) -> int:
    """Delete ended deliveries of webhooks past their time; return how many."""
    async with database.begin() as connection:
        return await webhooks.delete_old(connection, older_s=older_s, limit=limit)


async def forget_keys(database: AsyncEngine, *, older_s: float, limit: int) -> int:
    """Delete idempotency keys past their time; return how many."""
    async with database.begin() as connection:
        return await idempotency.delete_old(connection, older_s=older_s, limit=limit)


async def forget_workers(database: AsyncEngine, *, unseen_s: float) -> int:
    """Delete the rows of workers that are gone; return how many."""
    async with database.begin() as connection:
        return await presence.delete_unseen_workers(connection, older_s=unseen_s)


async def forget_worker_events(database: AsyncEngine, *, older_s: float, limit: int) -> int:
    """Delete old changes of workers' health; return how many."""
    async with autocommit(database) as connection:
        return await presence.delete_old_events(connection, older_s=older_s, limit=limit)
