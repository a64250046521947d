"""Workers describe themselves, and find what they serve."""

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import engine_time, presence, registry
from storage.autocommit import autocommit
from storage.engine_time import TimeSpent
from storage.presence import WorkerRow
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


async def describe_worker(database: AsyncEngine, row: WorkerRow, spent: TimeSpent | None = None) -> None:
    """Write a worker's row, and where its engine's time went."""
    async with database.begin() as connection:
        await presence.put_worker(connection, row)
        if spent is not None:
            await engine_time.put_time_spent(connection, spent)


async def forget_worker(database: AsyncEngine, name: str, spent: TimeSpent | None) -> None:
    """Delete the row of a worker that ends, and write down the last of its engine's time."""
    async with database.begin() as connection:
        await presence.delete_worker(connection, name)
        if spent is not None:
            await engine_time.put_time_spent(connection, spent)
