"""Workers describe themselves, and find what they serve."""

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import presence, registry
from storage.autocommit import autocommit
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


async def describe_worker(database: AsyncEngine, row: WorkerRow) -> None:
    """Write a worker's row."""
    async with database.begin() as connection:
        await presence.put_worker(connection, row)


async def forget_worker(database: AsyncEngine, name: str) -> None:
    """Delete the row of a worker that ends."""
    async with database.begin() as connection:
        await presence.delete_worker(connection, name)
