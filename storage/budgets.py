"""Budgets and holds: parts of the statements that accept and end tasks, and what administrators read and change.

A hold is taken in the statement that inserts the task and goes in the one that ends it, where what the task did
cost is added to what is spent; so both are exact whenever nothing is in a transaction. Rows of `budget_periods`
are locked in the order of their keys, after tasks: no two statements can deadlock.

Units: micro-USD.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.budgets import Period, Standing
from storage.money_tables import budgets
from storage.paging import Page, read_page


def _period_start(period: str, moment: str) -> str:
    """SQL of the first day of the period that a moment is in."""
    month = f"CAST(date_trunc('month', {moment} AT TIME ZONE 'UTC') AS date)"
    return f"CASE {period} WHEN 'month' THEN {month} ELSE DATE '1970-01-01' END"


# Between `asked` (the tasks as they came, with place and hold_usd_micros, all of one owner) and the rest of an
# INSERT that reads `new`: locks the owner's budgets and lets through as many tasks, in their order, as begin
# below every hard threshold. A budget without a row for this period lets nothing through.
HOLD = f""", owned AS (
  SELECT b.* FROM budgets b JOIN (SELECT tenant_id, key_id FROM asked LIMIT 1) AS o
    ON b.tenant_id = o.tenant_id AND (b.key_id IS NULL OR b.key_id = o.key_id)
), budget AS MATERIALIZED (
  SELECT p.budget_id, p.period_start, b.hard_usd_micros - p.spent_usd_micros - p.held_usd_micros AS room
  FROM owned b JOIN budget_periods p
    ON p.budget_id = b.id AND p.period_start = {_period_start("b.period", "now()")}
  ORDER BY p.budget_id FOR UPDATE OF p
), room AS (
  SELECT min(room) AS least, count(*) = (SELECT count(*) FROM owned) AS whole FROM budget
), new AS (
  SELECT asked.* FROM room, (
    SELECT *, coalesce(sum(hold_usd_micros) OVER (
      ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM asked) AS asked
  WHERE room.whole AND (room.least IS NULL OR before < room.least)
), holding AS (
  INSERT INTO holds (task_id, budget_id, period_start, usd_micros)
  SELECT new.id, budget_id, period_start, hold_usd_micros FROM new, budget
), held AS (
  UPDATE budget_periods p SET held_usd_micros = p.held_usd_micros + (SELECT sum(hold_usd_micros) FROM new)
  FROM budget WHERE p.budget_id = budget.budget_id AND p.period_start = budget.period_start
    AND EXISTS (SELECT 1 FROM new)
)"""

# After a `charged` (id, tenant_id, key_id, created_at, cost) of tasks that end in this statement.
SPEND = f""", released AS (
  DELETE FROM holds h USING charged c WHERE h.task_id = c.id RETURNING h.budget_id, h.period_start, h.usd_micros
), moved AS (
  SELECT budget_id, period_start, sum(spent) AS spent, sum(held) AS held FROM (
    SELECT budget_id, period_start, 0 AS spent, usd_micros AS held FROM released
    UNION ALL
    SELECT b.id, {_period_start("b.period", "c.created_at")}, c.cost, 0 FROM charged c
    JOIN budgets b ON b.tenant_id = c.tenant_id AND (b.key_id IS NULL OR b.key_id = c.key_id)
  ) AS m GROUP BY budget_id, period_start
), spending AS MATERIALIZED (
  SELECT p.budget_id, p.period_start, moved.spent, moved.held FROM budget_periods p JOIN moved
    ON moved.budget_id = p.budget_id AND moved.period_start = p.period_start
  ORDER BY p.budget_id, p.period_start FOR UPDATE OF p
), spent AS (
  UPDATE budget_periods p SET spent_usd_micros = p.spent_usd_micros + s.spent,
    held_usd_micros = p.held_usd_micros - s.held
  FROM spending s WHERE p.budget_id = s.budget_id AND p.period_start = s.period_start
)"""

_BEGIN = sa.text(f"""
INSERT INTO budget_periods (budget_id, period_start)
SELECT b.id, {_period_start("b.period", "now()")} FROM budgets b
WHERE b.tenant_id = :tenant_id AND (b.key_id IS NULL OR b.key_id = :key_id)
ORDER BY b.id ON CONFLICT DO NOTHING
""")


async def begin_periods(connection: AsyncConnection, tenant_id: str, key_id: str) -> bool:
    """Open the current period of a caller's budgets where none is open yet; say whether one was missing."""
    result = await connection.execute(_BEGIN, {"tenant_id": tenant_id, "key_id": key_id})
    return bool(result.rowcount)


_STANDINGS = f"""
SELECT b.*, coalesce(p.spent_usd_micros, 0) AS spent_usd_micros, coalesce(p.held_usd_micros, 0) AS held_usd_micros
FROM budgets b LEFT JOIN budget_periods p
  ON p.budget_id = b.id AND p.period_start = {_period_start("b.period", "now()")}
"""
_OF_CALLER = sa.text(
    _STANDINGS + "WHERE b.tenant_id = :tenant_id AND (b.key_id IS NULL OR b.key_id = :key_id) ORDER BY b.id"
)


def standing_of(row: Any) -> Standing:
    """Build from a row of `_STANDINGS`."""
    return Standing(
        id=row.id,
        key_id=row.key_id,
        period=Period(row.period),
        soft_usd_micros=row.soft_usd_micros,
        hard_usd_micros=row.hard_usd_micros,
        spent_usd_micros=row.spent_usd_micros,
        held_usd_micros=row.held_usd_micros,
    )


async def standings_of(connection: AsyncConnection, tenant_id: str, key_id: str) -> Sequence[Standing]:
    """The budgets that a caller's tasks count against."""
    rows = await connection.execute(_OF_CALLER, {"tenant_id": tenant_id, "key_id": key_id})
    return [standing_of(row) for row in rows]


_RECOUNT_LOCK = sa.text("SELECT 1 FROM budget_periods WHERE budget_id = :id ORDER BY period_start FOR UPDATE")
_COUNTED = f"""
SELECT p.budget_id, p.period_start, p.spent_usd_micros, p.held_usd_micros,
  coalesce((SELECT sum(l.cost_usd_micros) FROM ledger_entries l JOIN tasks t ON t.id = coalesce(l.task_id, l.corrects)
    WHERE l.tenant_id = b.tenant_id AND (b.key_id IS NULL OR b.key_id = l.key_id)
      AND {_period_start("b.period", "t.created_at")} = p.period_start), 0) AS spent,
  coalesce((SELECT sum(h.usd_micros) FROM holds h WHERE h.budget_id = p.budget_id
    AND h.period_start = p.period_start), 0) AS held
FROM budget_periods p JOIN budgets b ON b.id = p.budget_id
"""
_RECOUNT = sa.text(f"""
UPDATE budget_periods p SET spent_usd_micros = c.spent, held_usd_micros = c.held
FROM ({_COUNTED} WHERE b.id = :id) AS c WHERE p.budget_id = c.budget_id AND p.period_start = c.period_start
""")
_MISCOUNTED = sa.text(
    f"SELECT * FROM ({_COUNTED}) AS c WHERE spent <> spent_usd_micros OR held <> held_usd_micros"
)


async def recount(connection: AsyncConnection, budget_id: str) -> None:
    """Set what is spent and held of a budget from ledger and holds; for a new one, and to repair."""
    await connection.execute(_RECOUNT_LOCK, {"id": budget_id})
    await connection.execute(_RECOUNT, {"id": budget_id})


async def find_miscounted(connection: AsyncConnection) -> Sequence[Any]:
    """Rows of periods whose sums are not those of ledger and holds: noted as `*_usd_micros`, counted without."""
    return (await connection.execute(_MISCOUNTED)).all()


_STRAYS = sa.text("""
SELECT h.task_id FROM holds h JOIN tasks t ON t.id = h.task_id WHERE t.finished_at IS NOT NULL
ORDER BY h.task_id LIMIT :limit
""")
_RELEASE = sa.text(f"""
WITH charged AS (
  SELECT t.id, t.tenant_id, t.key_id, t.created_at, 0 AS cost FROM tasks t
  WHERE t.id = ANY(:ids) AND t.finished_at IS NOT NULL ORDER BY t.id FOR UPDATE
){SPEND}
SELECT count(DISTINCT id) FROM charged
""").bindparams(sa.bindparam("ids", type_=sa.ARRAY(sa.Text)))


async def find_strays(connection: AsyncConnection, *, limit: int) -> list[str]:
    """Ids of tasks that ended and still hold something: none, unless their end was written by hand."""
    return [row.task_id for row in await connection.execute(_STRAYS, {"limit": limit})]


async def release(connection: AsyncConnection, task_ids: Sequence[str]) -> int:
    """Release the holds of tasks that ended; what they cost is in the ledger already."""
    return int((await connection.execute(_RELEASE, {"ids": list(task_ids)})).scalar_one())


_PAST_SOFT = sa.text("""
WITH passed AS (
  SELECT p.budget_id, p.period_start FROM budget_periods p JOIN budgets b ON b.id = p.budget_id
  WHERE p.soft_noted_at IS NULL AND p.spent_usd_micros >= b.soft_usd_micros
  ORDER BY p.budget_id, p.period_start LIMIT :limit FOR UPDATE OF p SKIP LOCKED
)
UPDATE budget_periods p SET soft_noted_at = now() FROM passed, budgets b
WHERE p.budget_id = passed.budget_id AND p.period_start = passed.period_start AND b.id = p.budget_id
RETURNING b.*, p.period_start, p.spent_usd_micros, p.held_usd_micros
""")


async def note_past_soft(connection: AsyncConnection, *, limit: int) -> Sequence[Any]:
    """Note periods that passed their soft threshold and return them, each once: rows of budget and period."""
    return (await connection.execute(_PAST_SOFT, {"limit": limit})).all()


@dataclass(frozen=True, slots=True)
class StoredBudget:
    """A budget, as administrators set it."""

    id: str
    tenant_id: str
    key_id: str | None
    period: str
    soft_usd_micros: int | None
    hard_usd_micros: int | None
    webhook: str | None
    created_at: datetime


def _stored(row: Any) -> StoredBudget:
    return StoredBudget(**{name: getattr(row, name) for name in StoredBudget.__dataclass_fields__})


async def find_budget(
    connection: AsyncConnection, tenant_id: str, key_id: str | None, period: str
) -> StoredBudget | None:
    """Read an owner's budget and lock it until the transaction ends."""
    query = sa.select(budgets).where(
        budgets.c.tenant_id == tenant_id,
        budgets.c.key_id.is_not_distinct_from(key_id),
        budgets.c.period == period,
    )
    row = (await connection.execute(query.with_for_update())).one_or_none()
    return _stored(row) if row else None


async def put_budget(
    connection: AsyncConnection,
    budget_id: str,
    *,
    tenant_id: str,
    key_id: str | None,
    period: str,
    terms: dict[str, Any],
) -> StoredBudget:
    """Set an owner's budget and open its current period; one that it has keeps its id and what was spent."""
    query = (
        insert(budgets)
        .values(id=budget_id, tenant_id=tenant_id, key_id=key_id, period=period, **terms)
        .on_conflict_do_update(constraint="uq_budgets_owner", set_=terms)
        .returning(budgets)
    )
    stored = _stored((await connection.execute(query)).one())
    await connection.execute(_BEGIN_ONE, {"id": stored.id})
    return stored


async def delete_budget(connection: AsyncConnection, budget_id: str) -> StoredBudget | None:
    """Delete a budget with its sums and holds; None when there is none."""
    query = sa.delete(budgets).where(budgets.c.id == budget_id).returning(budgets)
    row = (await connection.execute(query)).one_or_none()
    return _stored(row) if row else None


async def list_budgets(
    connection: AsyncConnection, page: Page, *, tenant_id: str | None
) -> tuple[list[tuple[StoredBudget, Standing]], bool]:
    """List budgets with what is spent and held now, and whether there are more."""
    standing = sa.text(_STANDINGS).columns(
        *(sa.column(column.name, column.type) for column in budgets.c),
        sa.column("spent_usd_micros", sa.BigInteger),
        sa.column("held_usd_micros", sa.BigInteger),
    )
    found = standing.subquery("b")
    query = sa.select(found)
    if tenant_id is not None:
        query = query.where(found.c.tenant_id == tenant_id)
    rows, has_more = await read_page(connection, query, found.c.id, page)
    return [(_stored(row), standing_of(row)) for row in rows], has_more


_BEGIN_ONE = sa.text(f"""
INSERT INTO budget_periods (budget_id, period_start)
SELECT b.id, {_period_start("b.period", "now()")} FROM budgets b WHERE b.id = :id ON CONFLICT DO NOTHING
""")
