"""Tell owners of ended tasks: queue a delivery, claim those that are due, and note what became of a try."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from core.webhooks import Outcome
from schemas.webhooks import event_body, event_type
from services.new_id import new_id
from storage import webhooks
from storage.autocommit import autocommit
from storage.webhooks import Delivery, EndedTask, Tried


async def queue_deliveries(database: AsyncEngine, *, limit: int) -> int:
    """Make a delivery of each ended task with a webhook that has none yet; return how many."""
    async with database.begin() as connection:
        ended = await webhooks.lock_ended(connection, limit=limit)
        if not ended:
            return 0
        disabled = await webhooks.which_disabled(connection, [(task.tenant_id, task.url) for task in ended])
        await webhooks.insert_deliveries(
            connection, [_row(task, disabled=(task.tenant_id, task.url) in disabled) for task in ended]
        )
    return len(ended)


def _row(task: EndedTask, *, disabled: bool) -> dict[str, object]:
    delivery_id = new_id("msg")
    kind = event_type(task.state, task.finish_reason, task.response_id)
    about = {"id": task.id, "status": task.state, "metadata": task.metadata}
    if task.response_id is not None:
        about = {"id": task.response_id}
    row: dict[str, object] = {
        "id": delivery_id,
        "tenant_id": task.tenant_id,
        "task_id": task.id,
        "url": task.url,
        "type": kind,
        "body": event_body(delivery_id, kind, int(task.finished_at.timestamp()), about),
        "state": "disabled" if disabled else "pending",
    }
    return row | {"next_at": None if disabled else task.finished_at}


async def claim_deliveries(
    database: AsyncEngine, *, limit: int, per_tenant: int, busy: Sequence[str], lease_s: float
) -> list[Delivery]:
    """Claim deliveries that are due; one that is not settled within the lease is due again."""
    async with autocommit(database) as connection:
        return await webhooks.claim(
            connection, limit=limit, per_tenant=per_tenant, busy=busy, lease_s=lease_s
        )


async def note_try(
    database: AsyncEngine, delivery: Delivery, tried: Tried, outcome: Outcome, retry_s: float | None
) -> None:
    """Log a try and set what follows: nothing more, another try in so many seconds, or an end for its URL."""
    state = "delivered" if outcome is Outcome.DELIVERED else "pending"
    if outcome is Outcome.FAILED and retry_s is None:
        state = "failed"
    async with database.begin() as connection:
        if outcome is Outcome.UNWANTED:
            await webhooks.disable(connection, new_id("whd"), delivery.tenant_id, delivery.url)
            state = "disabled"
        await webhooks.settle(
            connection, delivery, tried, state=state, retry_s=retry_s if state == "pending" else None
        )
