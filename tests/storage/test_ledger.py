"""Prices and the ledger, on a real Postgres."""

from datetime import UTC, date, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure
from core.lanes import Priority
from core.pricing import Tariff, Usage, cost_usd_micros
from core.states import TaskState
from services.attempt import Holder, claim, hand_back, renew, settle
from services.cancel import cancel
from services.manage_tariffs import add_tariff
from services.tend import expire, rescue
from services.workers import describe_worker
from storage.audit import Actor
from storage.engine_time import TimeSpent
from storage.presence import WorkerRow
from storage.records import Caller, Claim, Ending, Held, NewTask, Used
from storage.tariffs import PriceList, prices_in_force, put_tariff
from tests.support.seeds import MODEL, TARIFF, end_lease, seed_task

HOLDER = Holder(worker="w1", model=MODEL, lease_s=30.0)
USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=7)


async def run(database: AsyncEngine, statement: str, **values: object) -> list[sa.Row[tuple[object, ...]]]:
    async with database.begin() as connection:
        result = await connection.execute(sa.text(statement), values)
        return list(result) if result.returns_rows else []


async def claimed(database: AsyncEngine, task_id: str) -> Claim:
    return (await claim(database, [task_id], HOLDER))[task_id]


def ending(held: Claim, engine_us: int, failure: Failure | None = None) -> Ending:
    return Ending(
        held.task_id,
        held.attempt,
        TaskState.FAILED if failure else TaskState.COMPLETED,
        USAGE,
        cost_usd_micros(USAGE, held.tariff, engine_us),
        engine_us,
        held.tariff.id,
        failure=failure,
    )


async def set_price(
    database: AsyncEngine, output: int, priority: Priority | None = None, engine: int = 0
) -> None:
    async with database.begin() as connection:
        await put_tariff(connection, MODEL, Tariff(0, 0, output, engine), priority)


async def test_a_task_is_priced_by_the_version_it_was_accepted_under_and_the_ledger_keeps_it(
    database: AsyncEngine, caller: Caller
) -> None:
    actor = Actor("test")

    async def price(output: int, **of: str) -> None:
        prices = {"prompt_usd_micros": 0, "cached_usd_micros": 0, "output_usd_micros": output, **of}
        await add_tariff(database, actor, MODEL, prices, valid_from=None, valid_until=None)

    async def accepted(version: str | None, **options: Priority) -> NewTask:
        await run(database, "UPDATE models SET version = :version", version=version)
        prices = await in_force(database)
        new = await seed_task(database, caller, **options)
        assert prices.of(new.lane).output_usd_micros == expected[version, new.lane.priority]  # as it is held
        return new

    async def in_force(database: AsyncEngine) -> PriceList:
        async with database.connect() as connection:
            return await prices_in_force(connection, [MODEL])

    await price(3)
    await price(5, version="2")
    await price(7, priority="batch")
    expected = {
        (None, Priority.STANDARD): 3,
        ("1", Priority.STANDARD): 3,
        ("2", Priority.STANDARD): 5,
        ("2", Priority.BATCH): 7,  # its own priority's price goes before its own version's
    }
    new = {(version, priority): await accepted(version, priority=priority) for version, priority in expected}
    await run(database, "UPDATE models SET version = '3'")  # what was accepted keeps its price
    for of, one in new.items():
        held = await claimed(database, one.id)
        assert held.tariff.output_usd_micros == expected[of]
        await settle(database, [ending(held, 0)])
    entries = await run(database, "SELECT task_id, version FROM ledger_entries")
    assert {row.task_id: row.version for row in entries} == {one.id: of[0] for of, one in new.items()}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ledger_entries SET cost_usd_micros = 0",
        "UPDATE ledger_entries SET reason = 'x'",
        "DELETE FROM ledger_entries",
        "TRUNCATE ledger_entries",
        "UPDATE tariffs SET output_usd_micros = 1",
        "UPDATE tariffs SET valid_from = now()",
        "DELETE FROM tariffs",
        "DELETE FROM models",
    ],
)
async def test_what_was_charged_and_by_which_price_can_not_be_changed(
    database: AsyncEngine, caller: Caller, change: str
) -> None:
    new = await seed_task(database, caller)
    await settle(database, [ending(await claimed(database, new.id), 5)])
    with pytest.raises(IntegrityError):
        await run(database, change)
    (entry,) = await run(database, "SELECT cost_usd_micros FROM ledger_entries")
    assert entry.cost_usd_micros == cost_usd_micros(USAGE, TARIFF)


async def test_an_entry_names_its_price_and_has_the_engines_counts(
    database: AsyncEngine, caller: Caller
) -> None:
    await set_price(database, 1_000_000, engine=3_000_000)
    new = await seed_task(database, caller)
    held = await claimed(database, new.id)
    await settle(database, [ending(held, 2_500_000)])
    (entry,) = await run(database, "SELECT * FROM ledger_entries")
    assert (entry.kind, entry.tariff_id, entry.engine_us) == ("task", held.tariff.id, 2_500_000)
    assert entry.cost_usd_micros == 7 + 7_500_000


async def test_a_failure_on_our_side_is_free_and_its_engine_time_is_not_the_tenants(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    await settle(database, [ending(await claimed(database, new.id), 5, Failure.ENGINE_ERROR)])
    (entry,) = await run(database, "SELECT * FROM ledger_entries")
    assert (entry.output_tokens, entry.engine_us, entry.cost_usd_micros) == (0, 0, 0)
    (task,) = await run(database, "SELECT engine_us, usage_output_tokens FROM tasks")
    assert tuple(task) == (5, 7)


async def test_the_price_of_a_tasks_own_priority_goes_before_the_one_for_all(
    database: AsyncEngine, caller: Caller
) -> None:
    await set_price(database, 5)
    await set_price(database, 9, Priority.BATCH)
    standard = await seed_task(database, caller)
    batch = await seed_task(database, caller, priority=Priority.BATCH)
    held = await claim(database, [standard.id, batch.id], HOLDER)
    assert held[standard.id].tariff.output_usd_micros == 5
    assert held[batch.id].tariff.output_usd_micros == 9


async def test_the_price_at_acceptance_holds_however_late_the_task_runs(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    await set_price(database, 5)
    assert (await claimed(database, new.id)).tariff.output_usd_micros == TARIFF.output_usd_micros


async def test_a_price_that_ended_gives_way_to_the_one_before_it(
    database: AsyncEngine, caller: Caller
) -> None:
    await set_price(database, 5)
    await run(
        database,
        "UPDATE tariffs SET valid_until = valid_from + interval '1 microsecond' WHERE output_usd_micros = 5",
    )
    new = await seed_task(database, caller)
    assert (await claimed(database, new.id)).tariff.output_usd_micros == TARIFF.output_usd_micros


async def test_setting_the_same_price_again_adds_none(database: AsyncEngine, caller: Caller) -> None:
    await set_price(database, 5)
    await set_price(database, 5)
    assert len(await run(database, "SELECT 1 FROM tariffs WHERE output_usd_micros = 5")) == 1


async def test_engine_time_is_carried_over_attempts_and_each_keeps_its_own(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    first = await claimed(database, new.id)
    await hand_back(
        database, new.id, first.attempt, Failure.WORKER_DRAINED, exposed=False, used=Used(USAGE, 100)
    )
    lost = await claimed(database, new.id)
    assert lost.used == Used(USAGE, 100)
    await renew(database, [Held(new.id, lost.attempt, cleared=True, used=Used(USAGE, 130))], 30.0)
    await end_lease(database, new.id)

    async def none(task_id: str) -> int:
        return 0

    await rescue(database, limit=10, count_streamed=none)
    last = await claimed(database, new.id)
    assert last.used == Used(USAGE, 130)
    await settle(database, [ending(last, 170)])
    assert [
        row.engine_us for row in await run(database, "SELECT engine_us FROM attempts ORDER BY attempt")
    ] == [
        100,
        30,
        40,
    ]
    (entry,) = await run(database, "SELECT engine_us FROM ledger_entries")
    assert entry.engine_us == 170


async def test_a_task_that_ends_between_two_attempts_pays_for_what_the_first_generated(
    database: AsyncEngine, caller: Caller
) -> None:
    await set_price(database, 1_000_000, engine=1_000_000)
    cancelled, late, untouched = [await seed_task(database, caller) for _ in range(3)]
    for new in (cancelled, late):
        held = await claimed(database, new.id)
        await hand_back(
            database, new.id, held.attempt, Failure.WORKER_DRAINED, exposed=False, used=Used(USAGE, 2_000_000)
        )
    await run(database, "UPDATE tasks SET deadline_at = now() WHERE id = :id", id=late.id)
    for new in (cancelled, untouched):
        await cancel(database, caller.tenant_id, new.id)
    await expire(database, limit=10)
    rows = await run(
        database, "SELECT task_id, output_tokens, engine_us, cost_usd_micros, tariff_id FROM ledger_entries"
    )
    entries = {row.task_id: tuple(row)[1:4] for row in rows}
    assert entries == {
        cancelled.id: (7, 2_000_000, 2_000_007),
        late.id: (7, 2_000_000, 2_000_007),
        untouched.id: (0, 0, 0),
    }
    assert all(row.tariff_id for row in rows)


async def test_a_workers_engine_time_is_written_in_place_of_what_was_known(database: AsyncEngine) -> None:
    row = WorkerRow("w1", MODEL, "deterministic", "1", "short", 4, 0, "ready")
    began = datetime.now(UTC)
    for busy_us in (10, 25):
        spent = TimeSpent("w1", began, date(2026, 11, 30), MODEL, 5, busy_us, 1, ended=busy_us == 25)
        await describe_worker(database, row, spent)
    rows = await run(database, "SELECT idle_us, busy_us, overhead_us, ended FROM engine_time")
    assert [tuple(one) for one in rows] == [(5, 25, 1, True)]
