"""Workers describe themselves, and find what they serve."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import parse_length_classes
from storage import engine_time, presence, registry
from storage.autocommit import autocommit
from storage.engine_time import TimeSpent
from storage.presence import SeenWorker, WorkerEvent, WorkerRow
from storage.records import Model


class UnknownModelError(LookupError):
    """No such model is registered."""


async def find_model(database: AsyncEngine, name: str) -> Model:
    """Read a model's registration. Raises: UnknownModelError."""
    async with autocommit(database) as connection:
        model = await registry.get_model(connection, name)
    if model is None:
        raise UnknownModelError(f"the model {name!r} is not registered: `headrace model add`")
    return model


async def describe_worker(
    database: AsyncEngine,
    row: WorkerRow,
    spent: TimeSpent | None = None,
    events: Sequence[WorkerEvent] = (),
) -> None:
    """Write a worker's row, how its health changed, and where its engine's time went."""
    async with database.begin() as connection:
        await presence.put_worker(connection, row)
        if events:
            await presence.put_events(connection, events)
        if spent is not None:
            await engine_time.put_time_spent(connection, spent)


async def served_elsewhere(database: AsyncEngine, row: WorkerRow, *, within_s: float) -> bool:
    """Say whether other workers that are well serve all length classes that this one does."""
    async with autocommit(database) as connection:
        peers = await presence.healthy_peers(connection, row.model, but=row.name, within_s=within_s)
    served = {length_class for peer in peers for length_class in parse_length_classes(peer)}
    return set(parse_length_classes(row.length_classes)) <= served


async def list_workers(database: AsyncEngine, *, events: int) -> tuple[list[SeenWorker], list[WorkerEvent]]:
    """List the workers that are there, and the newest changes of health of any."""
    async with autocommit(database) as connection:
        return (
            await presence.list_workers(connection),
            await presence.list_events(connection, limit=events),
        )


async def forget_worker(database: AsyncEngine, name: str, spent: TimeSpent | None) -> None:
    """Delete the row of a worker that ends, and write down the last of its engine's time."""
    async with database.begin() as connection:
        await presence.delete_worker(connection, name)
        if spent is not None:
            await engine_time.put_time_spent(connection, spent)
