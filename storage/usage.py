"""Sums over the ledger, and over engines' time. Read only.

Days are UTC; a range begins with its first day and ends before its last. Units: micro-USD, µs of engine time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.usage import Group
from storage.batch_tables import batch_items
from storage.money_tables import engine_time, ledger_entries
from storage.tables import tasks


@dataclass(frozen=True, slots=True)
class Days:
    """A range of days; `end` is not in it."""

    start: date
    end: date


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What was used and charged, of what `of` says."""

    of: dict[Group, str | None]
    tasks: int
    prompt_tokens: int
    cached_tokens: int  # part of prompt_tokens
    output_tokens: int
    engine_us: int
    corrections_usd_micros: int  # part of cost_usd_micros; may be negative
    cost_usd_micros: int


def _midnight(day: date) -> sa.ColumnElement[Any]:
    return sa.func.timezone("UTC", sa.cast(day, sa.TIMESTAMP))


def _within(days: Days) -> sa.ColumnElement[bool]:
    made = ledger_entries.c.created_at
    return sa.and_(made >= _midnight(days.start), made < _midnight(days.end))


_BATCH_OF = sa.func.coalesce(ledger_entries.c.task_id, ledger_entries.c.corrects)
_COLUMNS: dict[Group, sa.ColumnElement[Any]] = {
    Group.DAY: sa.cast(sa.cast(sa.func.timezone("UTC", ledger_entries.c.created_at), sa.Date), sa.Text),
    Group.MODEL: ledger_entries.c.model,
    Group.VERSION: ledger_entries.c.version,
    Group.KEY: ledger_entries.c.key_id,
    Group.PRIORITY: ledger_entries.c.priority,
    Group.BATCH: batch_items.c.batch_id,
    Group.TENANT: ledger_entries.c.tenant_id,
}


def _sum(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    return sa.cast(sa.func.coalesce(sa.func.sum(column), 0), sa.BigInteger)


async def sum_usage(
    connection: AsyncConnection,
    days: Days,
    groups: Sequence[Group],
    *,
    tenant_id: str | None,
    limit: int,
) -> list[UsageRow]:
    """Sum the ledger, of one tenant or of all; the first `limit` rows, ordered by their groups."""
    entry = ledger_entries.c
    is_task = entry.kind == "task"
    columns = [_COLUMNS[group].label(f"by_{group}") for group in groups]
    query = sa.select(
        *columns,
        sa.func.count().filter(is_task).label("tasks"),
        _sum(entry.prompt_tokens).label("prompt"),
        _sum(entry.cached_tokens).label("cached"),
        _sum(entry.output_tokens).label("output"),
        _sum(entry.engine_us).label("engine_us"),
        _sum(sa.case((is_task, 0), else_=entry.cost_usd_micros)).label("corrections"),
        _sum(entry.cost_usd_micros).label("cost"),
    ).where(_within(days))
    if Group.BATCH in groups:
        query = query.select_from(ledger_entries.outerjoin(batch_items, batch_items.c.task_id == _BATCH_OF))
    if tenant_id is not None:
        query = query.where(entry.tenant_id == tenant_id)
    rows = await connection.execute(query.group_by(*columns).order_by(*columns).limit(limit))
    return [
        UsageRow(
            dict(zip(groups, row, strict=False)),
            row.tasks,
            row.prompt,
            row.cached,
            row.output,
            row.engine_us,
            row.corrections,
            row.cost,
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class EngineSums:
    """Where the engines' time of some days went; the parts add up to `wall_us`."""

    idle_us: int
    overhead_us: int  # starting, warming up, serving nobody
    busy_us: int
    free_us: int  # of busy: on tasks that we failed, which nobody pays for

    @property
    def wall_us(self) -> int:
        return self.idle_us + self.overhead_us + self.busy_us


async def sum_engine_time(connection: AsyncConnection, days: Days) -> EngineSums:
    """Sum what workers wrote down."""
    spent = engine_time.c
    row = (
        await connection.execute(
            sa.select(_sum(spent.idle_us), _sum(spent.overhead_us), _sum(spent.busy_us)).where(
                spent.day >= days.start, spent.day < days.end
            )
        )
    ).one()
    free = await connection.scalar(
        sa.select(_sum(tasks.c.engine_us - ledger_entries.c.engine_us))
        .join(ledger_entries, ledger_entries.c.task_id == tasks.c.id)
        .where(_within(days), tasks.c.engine_us > ledger_entries.c.engine_us)
    )
    return EngineSums(row[0], row[1], row[2], int(free or 0))
