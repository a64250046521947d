"""Read batches: for their owner, and those that are to be worked on."""

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import batches
from storage.autocommit import autocommit
from storage.batches import Batch, Work

_OPEN_LIMIT = 1000


async def find_batch(database: AsyncEngine, tenant_id: str, batch_id: str) -> Batch | None:
    """Read one batch; None for an unknown id and for another tenant's alike."""
    async with autocommit(database) as connection:
        return await batches.get_batch(connection, tenant_id, batch_id)


async def list_batch_page(
    database: AsyncEngine, tenant_id: str, *, limit: int, after: str | None
) -> tuple[list[Batch], bool] | None:
    """List a page and say whether there is more; None when `after` is not one of the tenant's batches."""
    async with autocommit(database) as connection:
        if after is not None and await batches.get_batch(connection, tenant_id, after) is None:
            return None
        found = await batches.list_batches(connection, tenant_id, limit=limit + 1, after=after)
    return found[:limit], len(found) > limit


async def batches_to(work: Work, database: AsyncEngine) -> list[Batch]:
    """List every tenant's open batches that some work may be due for."""
    async with autocommit(database) as connection:
        return await batches.list_to_do(connection, work, limit=_OPEN_LIMIT)
