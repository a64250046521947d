"""Tell owners of ended tasks and batches: queue a delivery, claim those due, and note what became of a try."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from core.webhooks import Outcome
from schemas.webhooks import batch_event_type, event_body, event_type
from services.new_id import new_id
from storage import webhooks
from storage.autocommit import autocommit
from storage.webhooks import Delivery, EndedBatch, EndedTask, Tried


async def queue_deliveries(database: AsyncEngine, *, limit: int) -> int:
    """Make a delivery of each ended task or batch with a webhook that has none yet; return how many."""
    async with database.begin() as connection:
        tasks = await webhooks.lock_ended(connection, limit=limit)
        batches = await webhooks.lock_ended_batches(connection, limit=limit)
        rows = [*map(_of_task, tasks), *map(_of_batch, batches)]
        if not rows:
            return 0
        urls = [(str(row["tenant_id"]), str(row["url"])) for row in rows]
        disabled = await webhooks.which_disabled(connection, urls)
        for row, url in zip(rows, urls, strict=True):
            if url in disabled:
                row |= {"state": "disabled", "next_at": None}
        await webhooks.insert_deliveries(connection, rows)
    return len(rows)


def _of_task(task: EndedTask) -> dict[str, object]:
    kind = event_type(task.state, task.finish_reason, task.response_id)
    about = {"id": task.id, "status": task.state, "metadata": task.metadata}
    if task.response_id is not None:
        about = {"id": task.response_id}
    return _row(task, kind, task.finished_at, about) | {"task_id": task.id, "batch_id": None}


def _of_batch(batch: EndedBatch) -> dict[str, object]:
    row = _row(batch, batch_event_type(batch.state), batch.ended_at, {"id": batch.id})
    return row | {"task_id": None, "batch_id": batch.id}


def _row(
    of: EndedTask | EndedBatch, kind: str, ended_at: datetime, about: dict[str, Any]
) -> dict[str, object]:
    delivery_id = new_id("msg")
    return {
        "id": delivery_id,
        "tenant_id": of.tenant_id,
        "url": of.url,
        "type": kind,
        "body": event_body(delivery_id, kind, int(ended_at.timestamp()), about),
        "state": "pending",
        "next_at": ended_at,
    }


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
