"""Accept a batch: its input is looked at later, line by line."""

from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncEngine

from services.once import IdempotencyKey, find_earlier, remember
from storage import batches
from storage.batches import Batch, NewBatch
from storage.idempotency import Earlier


async def create_batch(
    database: AsyncEngine,
    new: NewBatch,
    idempotency: IdempotencyKey | None,
    answer: Callable[[Batch], Earlier],
) -> Batch | Earlier:
    """Accept a batch and return it, or what was accepted earlier under the same key.

    `answer` says what the caller will be told, to be told again. Raises: KeyReusedError, KeyInFlightError.
    """
    tenant_id = new.caller.tenant_id
    async with database.begin() as connection:
        earlier = await find_earlier(connection, tenant_id, idempotency) if idempotency else None
        if earlier is not None:
            return earlier
        await batches.insert_batch(connection, new)
        batch = await batches.get_batch(connection, tenant_id, new.id)
        assert batch is not None
        if idempotency:
            await remember(connection, tenant_id, idempotency, answer(batch))
        return batch
