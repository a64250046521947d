"""Prices: which one holds for a task, and setting new ones. A price that was set stays as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.lanes import Lane
from core.pricing import FREE, Tariff
from storage.money_tables import tariffs
from storage.paging import Page, read_page


def prices_of(model: str, version: str, priority: str, moment: str) -> str:
    """SQL of the prices of a task as an array for `tariff_of`; the arguments are SQL too.

    A price for the task's own priority goes before one for all, then one for its own version of the model; of those,
    the one that began last holds.
    """
    return f"""SELECT array[p.prompt_usd_micros, p.cached_usd_micros, p.output_usd_micros, p.engine_usd_micros, p.id]
   FROM tariffs p WHERE p.model = {model} AND (p.version IS NULL OR p.version = {version})
     AND (p.priority IS NULL OR p.priority = {priority})
     AND p.valid_from <= {moment} AND (p.valid_until IS NULL OR p.valid_until > {moment})
   ORDER BY p.priority NULLS LAST, p.version NULLS LAST, p.valid_from DESC, p.id DESC LIMIT 1"""


def tariff_of(prices: Sequence[int] | None) -> Tariff:
    """Read that array."""
    return FREE if prices is None else Tariff(*prices)


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices by model and priority; priority None is of all that have no price of their own."""

    prices: Mapping[tuple[str, str | None], Tariff]

    def of(self, lane: Lane) -> Tariff:
        """The price of a task in a lane."""
        return self.prices.get((lane.model, lane.priority)) or self.prices.get((lane.model, None)) or FREE


async def put_tariff(
    connection: AsyncConnection, model: str, tariff: Tariff, priority: str | None = None
) -> None:
    """Set a model's prices from now on; does nothing when they are the ones in force."""
    prices = {
        "prompt_usd_micros": tariff.prompt_usd_micros,
        "cached_usd_micros": tariff.cached_usd_micros,
        "output_usd_micros": tariff.output_usd_micros,
        "engine_usd_micros": tariff.engine_usd_micros,
    }
    row = (
        await connection.execute(
            sa.select(*(tariffs.c[name] for name in prices))
            .where(
                tariffs.c.model == model,
                tariffs.c.version.is_(None),
                tariffs.c.priority.is_not_distinct_from(priority),
                tariffs.c.valid_from <= sa.func.now(),
                sa.or_(tariffs.c.valid_until.is_(None), tariffs.c.valid_until > sa.func.now()),
            )
            .order_by(tariffs.c.valid_from.desc(), tariffs.c.id.desc())
            .limit(1)
        )
    ).one_or_none()
    if row is None or tuple(row) != tuple(prices.values()):
        await connection.execute(tariffs.insert().values(model=model, priority=priority, **prices))


_IN_FORCE = sa.text("""
SELECT DISTINCT ON (p.model, p.priority) p.model, p.priority, p.prompt_usd_micros, p.cached_usd_micros,
  p.output_usd_micros, p.engine_usd_micros, p.id, p.engine_us_per_token
FROM tariffs p JOIN models m ON m.name = p.model WHERE p.model = ANY(:models)
  AND (p.version IS NULL OR p.version = m.version)
  AND p.valid_from <= now() AND (p.valid_until IS NULL OR p.valid_until > now())
ORDER BY p.model, p.priority, p.version NULLS LAST, p.valid_from DESC, p.id DESC
""").bindparams(sa.bindparam("models", type_=sa.ARRAY(sa.Text)))


_IDS_IN_FORCE = sa.text("""
SELECT DISTINCT ON (model, version, priority) id FROM tariffs
WHERE valid_from <= now() AND (valid_until IS NULL OR valid_until > now())
ORDER BY model, version, priority, valid_from DESC, id DESC
""").columns(sa.column("id", sa.BigInteger))


async def prices_in_force(connection: AsyncConnection, models: Sequence[str]) -> PriceList:
    """Read the prices of models as they are now."""
    rows = await connection.execute(_IN_FORCE, {"models": list(models)})
    return PriceList({(row.model, row.priority): Tariff(*row[2:]) for row in rows})


@dataclass(frozen=True, slots=True)
class StoredTariff:
    """A price, as administrators see it."""

    id: str
    model: str
    version: str | None
    priority: str | None
    valid_from: datetime
    valid_until: datetime | None
    prompt_usd_micros: int
    cached_usd_micros: int
    output_usd_micros: int
    engine_usd_micros: int
    engine_us_per_token: int


def _stored(row: Any) -> StoredTariff:
    values = {name: getattr(row, name) for name in StoredTariff.__dataclass_fields__}
    return StoredTariff(**values | {"id": _name(row.id)})


def _name(number: int) -> str:
    return f"tariff_{number:012d}"  # sorts as the numbers do


def _number(name: str) -> int:
    digits = name.removeprefix("tariff_")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) == 12 else -1


async def insert_tariff(
    connection: AsyncConnection,
    model: str,
    prices: dict[str, Any],
    *,
    valid_from: datetime | None,
    valid_until: datetime | None,
) -> StoredTariff | None:
    """Insert a price; None when it would begin or end in the past. Raises: IntegrityError where one begins then."""
    now: datetime = (await connection.execute(sa.select(sa.func.now()))).scalar_one()
    begins = valid_from or now
    if begins < now or (valid_until is not None and valid_until <= begins):
        return None
    query = tariffs.insert().values(model=model, valid_from=begins, valid_until=valid_until, **prices)
    return _stored((await connection.execute(query.returning(tariffs))).one())


async def get_tariff(connection: AsyncConnection, tariff_id: str) -> StoredTariff | None:
    """Read a price and lock it until the transaction ends."""
    query = sa.select(tariffs).where(tariffs.c.id == _number(tariff_id)).with_for_update()
    row = (await connection.execute(query)).one_or_none()
    return _stored(row) if row else None


async def end_tariff(connection: AsyncConnection, tariff_id: str) -> StoredTariff | None:
    """End a price that holds, now; None when it ended before or has not begun."""
    query = (
        sa.update(tariffs)
        .where(
            tariffs.c.id == _number(tariff_id),
            tariffs.c.valid_from < sa.func.now(),
            sa.or_(tariffs.c.valid_until.is_(None), tariffs.c.valid_until > sa.func.now()),
        )
        .values(valid_until=sa.func.now())
        .returning(tariffs)
    )
    row = (await connection.execute(query)).one_or_none()
    return _stored(row) if row else None


async def list_tariffs(
    connection: AsyncConnection, page: Page, *, model: str | None, in_force: bool = False
) -> tuple[list[StoredTariff], bool]:
    """List prices, of one model or of all, and whether there are more; `in_force`: those that hold now."""
    query = sa.select(tariffs)
    if in_force:
        query = query.where(tariffs.c.id.in_(_IDS_IN_FORCE))
    if model is not None:
        query = query.where(tariffs.c.model == model)
    key = "tariff_" + sa.func.lpad(sa.cast(tariffs.c.id, sa.Text), 12, "0")
    rows, has_more = await read_page(connection, query, key, page)
    return [_stored(row) for row in rows], has_more
