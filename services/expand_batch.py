"""Lines of a batch become tasks: the cursor, the lines and the tasks in one transaction, so none doubles or is lost.

The tasks are committed unpublished; the dispatcher publishes them as it does every other one that waits.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.hold import insert_within_budgets
from storage import batch_items, grants, tasks
from storage.batch_items import NewItem
from storage.batches import Batch
from storage.records import NewTask


class NoRoomError(Exception):
    """Only the first `room` tasks may be open: their owner's grant or budgets have no room for all of them."""

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.room = room


async def expand_batch(
    database: AsyncEngine,
    batch: Batch,
    *,
    to_bytes: int,
    to_line: int,
    items: Sequence[NewItem],
    new: Sequence[NewTask],
) -> None:
    """Move the batch's cursor over lines and accept their tasks, all of them or none.

    Raises: OvertakenError, NoRoomError, BudgetExhaustedError.
    """
    async with database.begin() as connection:
        await batch_items.advance(connection, batch, to_bytes=to_bytes, to_line=to_line, items=items)
        if not new:
            return
        await _require_room(connection, new)
        accepted = len(await insert_within_budgets(connection, new))
        if accepted < len(new):
            raise NoRoomError(accepted)


async def _require_room(connection: AsyncConnection, new: Sequence[NewTask]) -> None:
    limit, model, tenant_id = new[0].max_open_tasks, new[0].lane.model, new[0].caller.tenant_id
    if limit is None:
        return
    # under the grant's lock no two count the same tasks
    await grants.get_grant(connection, tenant_id, model)
    room = max(0, limit - await tasks.count_open(connection, model, tenant_id))
    if room < len(new):
        raise NoRoomError(room)
