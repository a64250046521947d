"""Budgets: set, changed and watched."""

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from core.budgets import Standing
from schemas.webhooks import event_body
from services.change import MissingError, changing
from services.manage_limits import require_owner
from services.manage_tenants import require_tenant
from services.new_id import new_id
from storage import budgets, webhooks
from storage.audit import Actor
from storage.autocommit import autocommit
from storage.budgets import StoredBudget
from storage.paging import Page

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
        "batch_id": None,
        "url": passed.webhook,
        "type": PAST_SOFT,
        "body": event_body(delivery_id, PAST_SOFT, int(time.time()), about),
    }


async def put_budget(
    database: AsyncEngine,
    actor: Actor,
    *,
    tenant: str,
    key: str | None,
    period: str,
    terms: dict[str, Any],
) -> StoredBudget:
    """Set an owner's budget, in place of a former one. Raises: MissingError, ConflictError."""
    async with changing(database, actor) as change:
        tenant_id, key_id = await require_owner(change.connection, tenant, key)
        before = await budgets.find_budget(change.connection, tenant_id, key_id, period)
        after = await budgets.put_budget(
            change.connection,
            new_id("budget"),
            tenant_id=tenant_id,
            key_id=key_id,
            period=period,
            terms=terms,
        )
        await change.record("budget.put", after.id, tenant_id=tenant_id, before=before, after=after)
    if before is None:
        # in a transaction after the one that every settle now sees: what ends meanwhile is counted here or there
        async with database.begin() as connection:
            await budgets.recount(connection, after.id)
    return after


async def delete_budget(database: AsyncEngine, actor: Actor, budget_id: str) -> StoredBudget:
    """Take a budget away; return it. Raises: MissingError."""
    async with changing(database, actor) as change:
        before = await budgets.delete_budget(change.connection, budget_id)
        if before is None:
            raise MissingError("budget", budget_id)
        await change.record("budget.delete", before.id, tenant_id=before.tenant_id, before=before)
        return before


async def list_budgets(
    database: AsyncEngine, page: Page, *, tenant: str | None
) -> tuple[list[tuple[StoredBudget, Standing]], bool]:
    """List budgets with how they stand, and whether there are more. Raises: MissingError for an unknown tenant."""
    async with autocommit(database) as connection:
        tenant_id = (await require_tenant(connection, tenant)).id if tenant is not None else None
        return await budgets.list_budgets(connection, page, tenant_id=tenant_id)
