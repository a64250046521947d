"""Usage, corrections and the reconciliation, on a real Postgres."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from core.budgets import Period
from core.failures import Failure
from core.lanes import Priority
from core.pricing import Usage, cost_usd_micros
from core.states import TaskState
from core.usage import Group
from schemas.usage import usage_csv, usage_row
from services.attempt import Holder, claim, settle
from services.change import ConflictError
from services.manage_budgets import list_budgets, put_budget
from services.manage_tariffs import add_tariff, correct, end_tariff
from services.read_usage import read_any_usage, read_chargeback, read_usage
from services.reconcile import reconcile_all, repair_budgets
from services.submit import submit
from services.workers import describe_worker
from storage.audit import Actor
from storage.engine_time import TimeSpent
from storage.paging import Page
from storage.presence import WorkerRow
from storage.records import Caller, Claim, Ending, NewTask
from storage.usage import Days
from tests.support.seeds import MODEL, new_task, seed_caller

HOLDER = Holder(worker="w1", model=MODEL, lease_s=30.0)
ADMIN = Actor("test")
PRICES = {"prompt_usd_micros": 10**8, "cached_usd_micros": 5 * 10**7, "output_usd_micros": 10**8}
USAGE = Usage(10, 4, 7)  # 600 + 200 + 700 micro-USD
TODAY = datetime.now(UTC).date()
DAYS = Days(TODAY, TODAY + timedelta(days=1))


@pytest.fixture
async def caller(database: AsyncEngine) -> Caller:
    caller = await seed_caller(database)
    await add_tariff(database, ADMIN, MODEL, PRICES, valid_from=None, valid_until=None)
    return caller


async def run(database: AsyncEngine, statement: str, **values: Any) -> list[Any]:
    async with database.begin() as connection:
        result = await connection.execute(sa.text(statement), values)
        return list(result) if result.returns_rows else []


async def ended(
    database: AsyncEngine,
    caller: Caller,
    *,
    engine_us: int = 0,
    failure: Failure | None = None,
    **options: Any,
) -> NewTask:
    """A task that ran."""
    new = new_task(caller, **options)
    await submit(database, new)
    held: Claim = (await claim(database, [new.id], HOLDER))[new.id]
    state = TaskState.FAILED if failure else TaskState.COMPLETED
    cost = cost_usd_micros(USAGE, held.tariff, engine_us)
    await settle(
        database,
        [Ending(new.id, held.attempt, state, USAGE, cost, engine_us, held.tariff.id, failure=failure)],
    )
    return new


async def spend_time(database: AsyncEngine, busy_us: int, *, ended: bool = True) -> None:
    """Write a worker's engine time of today, as that worker would."""
    row = WorkerRow("w1", MODEL, "deterministic", "1", "short", 4, 0, "ready")
    began = datetime.now(UTC) - timedelta(minutes=5)
    await describe_worker(database, row, TimeSpent("w1", began, TODAY, MODEL, 50, busy_us, 9, ended))


async def test_usage_is_summed_by_whatever_it_is_asked_by(database: AsyncEngine, caller: Caller) -> None:
    for priority in (Priority.BATCH, Priority.STANDARD, Priority.STANDARD):
        await ended(database, caller, priority=priority)
    other = await seed_caller(database, "other")
    await ended(database, other)
    report = await read_usage(database, DAYS, (Group.DAY, Group.PRIORITY), caller.tenant_id)
    assert [usage_row(row) for row in report.rows] == [
        {
            "day": TODAY.isoformat(),
            "priority": priority,
            "tasks": tasks,
            "prompt_tokens": 10 * tasks,
            "cached_tokens": 4 * tasks,
            "output_tokens": 7 * tasks,
            "engine_us": 0,
            "corrections_usd_micros": 0,
            "cost_usd_micros": 1500 * tasks,
        }
        for priority, tasks in (("batch", 1), ("standard", 2))
    ]
    assert (report.total.tasks, report.total.cost_usd_micros) == (3, 4500)
    await run(database, "UPDATE models SET version = '2'")
    await ended(database, caller)
    report = await read_usage(database, DAYS, (Group.VERSION,), caller.tenant_id)
    assert [(row.of[Group.VERSION], row.tasks) for row in report.rows] == [("2", 1), (None, 3)]
    by_tenant = await read_any_usage(database, DAYS, (Group.TENANT,), None)
    assert {row.of[Group.TENANT]: row.tasks for row in by_tenant.rows} == {
        caller.tenant_id: 4,
        other.tenant_id: 1,
    }
    before = Days(date(2020, 1, 1), TODAY)
    assert (await read_usage(database, before, (Group.MODEL,), caller.tenant_id)).rows == []


async def test_usage_by_batch_tells_tasks_of_none_apart(database: AsyncEngine, caller: Caller) -> None:
    await ended(database, caller)
    report = await read_usage(database, DAYS, (Group.BATCH, Group.KEY), caller.tenant_id)
    assert [(row.of[Group.BATCH], row.of[Group.KEY]) for row in report.rows] == [(None, caller.key_id)]
    header, line = usage_csv(report.rows, (Group.BATCH, Group.KEY)).splitlines()
    assert header.startswith("batch_id,key_id,tasks,prompt_tokens")
    assert line == f",{caller.key_id},1,10,4,7,0,0,1500"


async def test_a_correction_is_an_entry_beside_the_tasks_own(database: AsyncEngine, caller: Caller) -> None:
    terms = {"soft_usd_micros": None, "hard_usd_micros": 10**6, "webhook": None}
    new = await ended(database, caller)
    await put_budget(database, ADMIN, tenant="default", key=None, period=Period.MONTH, terms=terms)
    await correct(database, ADMIN, new.id, -1000, "the answer was cut off")
    with pytest.raises(ConflictError, match=r"charged 0\.0005 USD"):
        await correct(database, ADMIN, new.id, -1000, "again")
    report = await read_usage(database, DAYS, (Group.MODEL,), caller.tenant_id)
    (row,) = report.rows
    assert (row.tasks, row.corrections_usd_micros, row.cost_usd_micros) == (1, -1000, 500)
    ((_, standing),), _ = await list_budgets(database, Page(10), tenant="default")
    assert standing.spent_usd_micros == 500, (
        "what was spent before it was set counts, and so does the correction"
    )
    assert (await reconcile_all(database)).differences == []
    (entry,) = await run(database, "SELECT * FROM audit_entries WHERE action = 'ledger.correct'")
    assert entry.after["reason"] == "the answer was cut off"


async def test_tenants_shares_idle_time_and_overhead_are_the_engines_wall_time(
    database: AsyncEngine, caller: Caller
) -> None:
    await ended(database, caller, engine_us=300)
    await ended(database, caller, engine_us=100, failure=Failure.ENGINE_ERROR)
    await spend_time(database, 400)
    found = await read_chargeback(database, DAYS)
    assert (found.charged_us, found.engines.free_us, found.open_us) == (300, 100, 0)
    assert found.engines.wall_us == 300 + 100 + found.engines.idle_us + found.engines.overhead_us == 459
    assert (await reconcile_all(database)).differences == []


async def test_books_that_are_right_have_no_difference(database: AsyncEngine, caller: Caller) -> None:
    await ended(database, caller)
    await ended(database, caller, failure=Failure.INTERNAL)
    await submit(database, new_task(caller))
    found = await reconcile_all(database)
    assert (found.differences, found.tasks, found.charged) == ([], 3, 2)
    assert found.ledger_usd_micros == found.tasks_usd_micros == 1500


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE tasks SET usage_output_tokens = 8", "expected"),
        ("UPDATE tasks SET engine_us = 12", "expected"),
        ("DELETE FROM ledger_entries", "without an entry"),
        ("UPDATE ledger_entries SET cost_usd_micros = cost_usd_micros + 1", "expected"),
        ("UPDATE tariffs SET output_usd_micros = 1", "expected"),
        ("UPDATE ledger_entries SET tariff_id = 999", "price is gone"),
        ("UPDATE ledger_entries SET task_id = 'task_none'", "not there"),
        ("UPDATE budget_periods SET spent_usd_micros = 7", "7 spent"),
        ("UPDATE budget_periods SET held_usd_micros = 7", "7 held"),
        ("UPDATE engine_time SET busy_us = 7", "busy for 7"),
    ],
)
async def test_every_kind_of_damage_is_found(
    database: AsyncEngine, caller: Caller, damage: str, told: str
) -> None:
    terms = {"soft_usd_micros": None, "hard_usd_micros": 10**6, "webhook": None}
    await put_budget(database, ADMIN, tenant="default", key=None, period=Period.MONTH, terms=terms)
    await ended(database, caller, engine_us=5)
    await spend_time(database, 5)
    assert (await reconcile_all(database)).differences == []
    async with database.begin() as connection:
        await connection.execute(sa.text("SET LOCAL session_replication_role = replica"))  # without triggers
        await connection.execute(sa.text(damage))
    differences = (await reconcile_all(database)).differences
    assert any(told in difference for difference in differences), differences
    if "budget" in damage:
        assert await repair_budgets(database) == 1
        assert (await reconcile_all(database)).differences == []


async def test_a_price_that_ends_gives_way_and_neither_begins_in_the_past(
    database: AsyncEngine, caller: Caller
) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=1)
    with pytest.raises(ConflictError, match="past"):
        await add_tariff(database, ADMIN, MODEL, PRICES, valid_from=long_ago, valid_until=None)
    dear = await add_tariff(
        database, ADMIN, MODEL, PRICES | {"output_usd_micros": 10**9}, valid_from=None, valid_until=None
    )
    await ended(database, caller)
    await end_tariff(database, ADMIN, dear.id)
    with pytest.raises(ConflictError):
        await end_tariff(database, ADMIN, dear.id)
    await ended(database, caller)
    costs = [
        row.cost
        for row in await run(database, "SELECT cost_usd_micros AS cost FROM ledger_entries ORDER BY id")
    ]
    assert costs == [7800, 1500]
    assert (await reconcile_all(database)).differences == []


async def test_setting_a_budget_again_keeps_its_id_and_what_was_spent(
    database: AsyncEngine, caller: Caller
) -> None:
    terms = {"soft_usd_micros": None, "hard_usd_micros": 10**6, "webhook": None}
    first = await put_budget(database, ADMIN, tenant="default", key=None, period=Period.MONTH, terms=terms)
    new = replace(new_task(caller), hold_usd_micros=3000)
    await submit(database, new)
    again = await put_budget(
        database, ADMIN, tenant="default", key=None, period=Period.MONTH, terms=terms | {"hard_usd_micros": 5}
    )
    assert again.id == first.id
    ((stored, standing),), _ = await list_budgets(database, Page(10), tenant=None)
    assert (stored.hard_usd_micros, standing.held_usd_micros, standing.exhausted) == (5, 3000, True)
