"""What the dispatcher reads and writes: the heads of the queue, the replicas, and what tenants were served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from core.pace import Ended, Pace
from storage import counters, presence, queue_heads, registry, tasks
from storage.autocommit import autocommit
from storage.presence import WorkerRow
from storage.queue_heads import Group, InFlight, Waiting

SEEN_S = 10.0  # a worker that has not described itself for that long is not there


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What changes slowly."""

    workers: list[WorkerRow]
    models: list[str]
    weights: dict[str, float]  # of tenants whose weight is not 1
    running_bounds: dict[str, int]  # of tenants that have one


@dataclass(frozen=True, slots=True)
class View(Surroundings):
    """The queue and the replicas at one moment."""

    groups: list[Group]  # with something to send
    in_flight: list[InFlight]
    served: dict[tuple[str, str], float]  # virtual tokens by (model, tenant), of tenants with open tasks


async def look_around(database: AsyncEngine) -> Surroundings:
    """Read who is there."""
    async with autocommit(database) as connection:
        return Surroundings(
            workers=[seen.row for seen in await presence.list_workers(connection, within_s=SEEN_S)],
            models=await registry.model_names(connection),
            weights=await counters.read_weights(connection),
            running_bounds=await counters.read_running_bounds(connection),
        )


async def look(database: AsyncEngine, around: Surroundings, *, older_s: float) -> View:
    """Read where things stand. `older_s`: who accepted a task publishes it at once, and gets that long to."""
    async with autocommit(database) as connection:
        groups = await queue_heads.find_groups(connection, older_s=older_s)
        in_flight = await queue_heads.read_in_flight(connection)
        active = {one.tenant_id for one in groups} | {one.tenant_id for one in in_flight}
        return View(
            workers=around.workers,
            models=around.models,
            weights=around.weights,
            running_bounds=around.running_bounds,
            groups=groups,
            in_flight=in_flight,
            served=await counters.read_shares(connection, active) if active else {},
        )


async def read_heads(
    database: AsyncEngine, groups: Sequence[Group], most: int, *, older_s: float
) -> list[Waiting]:
    """Read the front of each group."""
    async with autocommit(database) as connection:
        return await queue_heads.read_heads(connection, groups, [most] * len(groups), older_s=older_s)


async def read_mates(
    database: AsyncEngine, prefixes: Mapping[Group, int], most: int, *, older_s: float
) -> list[Waiting]:
    """Read the front of each group's running prefix."""
    if not prefixes:
        return []
    groups = list(prefixes)
    async with autocommit(database) as connection:
        return await queue_heads.read_mates(
            connection, groups, list(prefixes.values()), [most] * len(groups), older_s=older_s
        )


async def read_oldest(
    database: AsyncEngine, groups: Sequence[Group], *, older_s: float, limit: int, without: Sequence[str] = ()
) -> list[Waiting]:
    """Read what was accepted first in the groups' lanes, but for what tenants `without` have there."""
    async with autocommit(database) as connection:
        return await queue_heads.read_oldest(
            connection, groups, older_s=older_s, limit=limit, without=without
        )


async def fold_counts(database: AsyncEngine, *, limit: int) -> dict[str, Ended]:
    """Bring the queue's counts up to date; return what ended by model."""
    async with database.begin() as connection:
        ended = await counters.fold(connection, limit=limit)
        if ended:
            await counters.drop_emptied(connection)
    return ended


async def lift_shares(database: AsyncEngine, model: str, served: Mapping[str, float]) -> None:
    """Raise counters of tenants that came back."""
    async with autocommit(database) as connection:
        await counters.raise_shares(connection, model, served)


async def read_paces(database: AsyncEngine) -> dict[str, Pace]:
    """Read how fast models are known to be."""
    async with autocommit(database) as connection:
        return await counters.read_paces(connection)


async def write_paces(database: AsyncEngine, paces: Mapping[str, Pace]) -> None:
    """Write how fast models are."""
    async with database.begin() as connection:
        for model, pace in sorted(paces.items()):
            await counters.write_pace(connection, model, pace)


async def expire_late(database: AsyncEngine, task_ids: Sequence[str]) -> list[str]:
    """End queued tasks that can't meet their deadline any more; return those that were still queued."""
    message = "The deadline can't be met any more: the task would run for longer than what is left."
    async with database.begin() as connection:
        return await tasks.expire_these(connection, task_ids, message=message)
