"""Budgets: set, changed and watched."""

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from schemas.webhooks import event_body
from services.new_id import new_id
from storage import budgets, webhooks
from storage.autocommit import autocommit

PAST_SOFT = "budget.soft_threshold_passed"


@dataclass(frozen=True, slots=True)
class Tended:
    """What one round did."""

    released: int  # tasks that had ended and still held something
    past_soft: int  # periods found past their soft threshold


async def tend_budgets(database: AsyncEngine, *, limit: int) -> Tended:
    """Release what tasks that ended still hold, and tell of soft thresholds that were passed."""
    async with autocommit(database) as connection:
        strays = await budgets.find_strays(connection, limit=limit)
        released = await budgets.release(connection, strays) if strays else 0
    async with database.begin() as connection:
        passed = await budgets.note_past_soft(connection, limit=limit)
        rows = [_delivery(one) for one in passed if one.webhook is not None]
        if rows:
            await webhooks.insert_deliveries(connection, rows)
    return Tended(released, len(passed))


def _delivery(passed: Any) -> dict[str, object]:
    delivery_id = new_id("msg")
    about = {
        "id": passed.id,
        "key_id": passed.key_id,
        "period": passed.period,
        "period_start": passed.period_start.isoformat(),
        "spent_usd_micros": passed.spent_usd_micros,
        "soft_usd_micros": passed.soft_usd_micros,
        "hard_usd_micros": passed.hard_usd_micros,
    }
    return {
        "id": delivery_id,
        "tenant_id": passed.tenant_id,
        "task_id": None,
        "url": passed.webhook,
        "type": PAST_SOFT,
        "body": event_body(delivery_id, PAST_SOFT, int(time.time()), about),
    }
