"""Lines of a batch become tasks: the cursor, the lines and the tasks in one transaction, so none doubles or is lost.

The tasks are committed unpublished; the outbox publishes them as it does every other one.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import batch_items, tasks
from storage.batch_items import NewItem
from storage.batches import Batch
from storage.records import NewTask


async def expand_batch(
    database: AsyncEngine,
    batch: Batch,
    *,
    to_bytes: int,
    to_line: int,
    items: Sequence[NewItem],
    new: Sequence[NewTask],
) -> None:
    """Move the batch's cursor over lines and accept their tasks. Raises: OvertakenError."""
    async with database.begin() as connection:
        await batch_items.advance(connection, batch, to_bytes=to_bytes, to_line=to_line, items=items)
        if new:
            await tasks.insert_tasks(connection, new)
