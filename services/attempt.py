"""An attempt's life: claim, renew, then settle or hand back. Each takes many tasks in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import RULES, Failure
from core.states import TaskState
from storage import attempts, claims, tasks
from storage.autocommit import autocommit
from storage.records import UNUSED, Claim, Ending, Held, Used


@dataclass(frozen=True, slots=True)
class Holder:
    """Who claims: the worker, the model it serves, and for how long it holds without renewing."""

    worker: str
    model: str
    lease_s: float


async def claim(database: AsyncEngine, task_ids: Sequence[str], holder: Holder) -> dict[str, Claim]:
    """Claim those of the tasks that may run; `claim_bounded` is for the rest."""
    async with autocommit(database) as connection:
        claimed = await claims.claim_unbounded(
            connection, task_ids, model=holder.model, worker=holder.worker, lease_s=holder.lease_s
        )
    return {one.task_id: one for one in claimed}


async def claim_bounded(database: AsyncEngine, task_ids: Sequence[str], holder: Holder) -> dict[str, Claim]:
    """Claim those of the tasks whose tenants have a bound on what they run, and a place.

    What finds none stays queued, and is published again by the dispatcher.
    """
    async with database.begin() as connection:
        claimed = await claims.claim_bounded(
            connection, task_ids, model=holder.model, worker=holder.worker, lease_s=holder.lease_s
        )
    return {one.task_id: one for one in claimed}


async def end_forbidden(database: AsyncEngine, task_ids: Sequence[str]) -> list[str]:
    """Fail those of the queued tasks whose tenant lost the model; return them."""
    failure = Failure.FORBIDDEN
    async with database.begin() as connection:
        return [
            task_id
            for task_id in await claims.find_ungranted(connection, task_ids)
            if await tasks.end_queued(connection, task_id, TaskState.FAILED, failure, RULES[failure].message)
        ]


async def renew(database: AsyncEngine, running: Sequence[Held], lease_s: float) -> dict[str, TaskState]:
    """Renew leases; return the state of each task still held. A missing one belongs to someone else."""
    async with autocommit(database) as connection:
        held = await attempts.renew(connection, running, lease_s=lease_s)
    return {task_id: TaskState(state) for task_id, state in held.items()}


async def set_exposed(database: AsyncEngine, task_id: str, attempt: int, exposed: bool) -> bool:
    """Note whether a suspect is in the engine without a token; False when it is held no more."""
    async with autocommit(database) as connection:
        return await attempts.set_exposed(connection, task_id, attempt, exposed)


async def settle(database: AsyncEngine, endings: Sequence[Ending]) -> dict[str, TaskState]:
    """End tasks with their results; return the state of each that was this attempt's to end."""
    async with autocommit(database) as connection:
        ended = await attempts.settle(connection, endings)
    return {task_id: TaskState(state) for task_id, state in ended.items()}


async def hand_back(
    database: AsyncEngine, task_id: str, attempt: int, failure: Failure, *, exposed: bool, used: Used = UNUSED
) -> bool:
    """Give a running task to its next attempt; False when it is not to have one.

    `exposed`: it was in the engine without having produced a token, so a death there may be its fault.
    `used`: by all attempts so far.
    """
    rule = RULES[failure]
    blame = rule.counts and (exposed or not rule.blames_exposed)
    async with autocommit(database) as connection:
        return await attempts.hand_back(connection, task_id, attempt, failure, blame=blame, used=used)
