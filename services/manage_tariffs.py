"""Set and end prices, and correct what was charged. Nothing that was charged, and no price, is ever changed."""

from datetime import datetime
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from core.money import usd
from services.change import ConflictError, MissingError, changing
from storage import ledger, registry, tariffs
from storage.audit import Actor
from storage.autocommit import autocommit
from storage.ledger import Correction
from storage.paging import Page
from storage.tariffs import StoredTariff


async def add_tariff(
    database: AsyncEngine,
    actor: Actor,
    model: str,
    prices: dict[str, Any],
    *,
    valid_from: datetime | None,
    valid_until: datetime | None,
) -> StoredTariff:
    """Set a price from a moment on, which holds for tasks accepted from then. Raises: MissingError, ConflictError."""
    try:
        async with changing(database, actor) as change:
            if await registry.get_model(change.connection, model) is None:
                raise MissingError("model", model)
            added = await tariffs.insert_tariff(
                change.connection, model, prices, valid_from=valid_from, valid_until=valid_until
            )
            if added is None:
                raise ConflictError("tariff_in_the_past", "A price can't begin or end in the past.")
            await change.record("tariff.create", added.id, after=added)
            return added
    except IntegrityError as error:
        raise ConflictError("tariff_exists", "Another price begins at that very moment.") from error


async def end_tariff(database: AsyncEngine, actor: Actor, tariff_id: str) -> StoredTariff:
    """End a price now: the one before it holds again. Raises: MissingError, ConflictError."""
    async with changing(database, actor) as change:
        before = await tariffs.get_tariff(change.connection, tariff_id)
        if before is None:
            raise MissingError("tariff", tariff_id)
        after = await tariffs.end_tariff(change.connection, tariff_id)
        if after is None:
            raise ConflictError("tariff_ended", "The price has ended, or has not begun yet.")
        await change.record("tariff.end", after.id, before=before, after=after)
        return after


async def list_tariffs(
    database: AsyncEngine, page: Page, *, model: str | None, in_force: bool
) -> tuple[list[StoredTariff], bool]:
    """List prices, past and future ones too unless `in_force`, and whether there are more."""
    async with autocommit(database) as connection:
        return await tariffs.list_tariffs(connection, page, model=model, in_force=in_force)


async def correct(
    database: AsyncEngine, actor: Actor, task_id: str, usd_micros: int, reason: str
) -> Correction:
    """Add to, or take from, what a task was charged, by an entry of its own. Raises: MissingError, ConflictError."""
    async with changing(database, actor) as change:
        charged = await ledger.lock_charged(change.connection, task_id)
        if charged is None:
            raise MissingError("task", task_id)
        if charged + usd_micros < 0:
            raise ConflictError(
                "correction_too_large",
                f"The task was charged {usd(charged)} USD; that is the most to take back.",
            )
        made = await ledger.insert_correction(change.connection, task_id, usd_micros, reason)
        await change.record("ledger.correct", made.task_id, tenant_id=made.tenant_id, after=made)
        return made
