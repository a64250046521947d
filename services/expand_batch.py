"""Lines of a batch become tasks: the cursor, the lines and the tasks in one transaction, so none doubles or is lost.

The tasks are committed unpublished; the outbox publishes them as it does every other one.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from services.hold import insert_within_budgets
from storage import batch_items
from storage.batch_items import NewItem
from storage.batches import Batch
from storage.records import NewTask


class WindowTooLargeError(Exception):
    """Budgets have room for `fitting` of a window's tasks, and nothing was done."""

    def __init__(self, fitting: int) -> None:
        super().__init__(fitting)
        self.fitting = fitting


async def expand_batch(
    database: AsyncEngine,
    batch: Batch,
    *,
    to_bytes: int,
    to_line: int,
    items: Sequence[NewItem],
    new: Sequence[NewTask],
) -> None:
    """Move the batch's cursor over lines and accept their tasks.

    Raises: OvertakenError; BudgetExhaustedError, and WindowTooLargeError where budgets have room for a part.
    """
    async with database.begin() as connection:
        await batch_items.advance(connection, batch, to_bytes=to_bytes, to_line=to_line, items=items)
        if new:
            times = await insert_within_budgets(connection, new)
            if len(times) < len(new):
                raise WindowTooLargeError(len(times))
