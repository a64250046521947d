"""Budgets and holds on a real Postgres: many submits at once, every way to end, and any schedule of them."""

import asyncio
import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure
from core.pricing import Usage, cost_usd_micros, hold_usd_micros
from core.states import TaskState
from services.attempt import Holder, claim, end_forbidden, hand_back, renew, settle
from services.authenticate import authenticate
from services.cancel import cancel, give_up
from services.hold import BudgetExhaustedError, insert_within_budgets
from services.manage_budgets import tend_budgets
from services.register import create_key
from services.retry import retry
from services.submit import submit
from services.tend import expire, rescue
from storage import budgets
from storage.records import Caller, Claim, Ending, Held, NewTask, Used
from storage.tables import tasks
from tests.accounting import books
from tests.support.seeds import MODEL, PEPPER, TARIFF, end_lease, new_task, seed_caller

HOLDER = Holder(worker="w1", model=MODEL, lease_s=30.0)
PRICE = replace(TARIFF, prompt_usd_micros=100_000_000, cached_usd_micros=50_000_000, output_usd_micros=10**8)
PROMPT, OUTPUT = 10, 20
HOLD = hold_usd_micros(PROMPT, OUTPUT, PRICE)  # 3,000
_numbers = count(1)


@pytest.fixture
async def caller(database: AsyncEngine) -> Caller:
    caller = await seed_caller(database)
    await run(
        database,
        "INSERT INTO tariffs (model, prompt_usd_micros, cached_usd_micros, output_usd_micros)"
        " VALUES (:model, :prompt, :cached, :output)",
        model=MODEL,
        prompt=PRICE.prompt_usd_micros,
        cached=PRICE.cached_usd_micros,
        output=PRICE.output_usd_micros,
    )
    return caller


async def run(database: AsyncEngine, statement: str, **values: Any) -> list[Any]:
    async with database.begin() as connection:
        result = await connection.execute(sa.text(statement), values)
        return list(result) if result.returns_rows else []


async def budget(
    database: AsyncEngine,
    caller: Caller,
    hard: int | None,
    *,
    period: str = "month",
    of_key: bool = False,
) -> str:
    name = f"budget_{next(_numbers)}"
    await run(
        database,
        "INSERT INTO budgets (id, tenant_id, key_id, period, hard_usd_micros)"
        " VALUES (:id, :tenant, :key, :period, :hard)",
        id=name,
        tenant=caller.tenant_id,
        key=caller.key_id if of_key else None,
        period=period,
        hard=hard,
    )
    return name


def task(caller: Caller, **options: Any) -> NewTask:
    return replace(new_task(caller, **options), hold_usd_micros=HOLD)


async def standing(database: AsyncEngine, name: str) -> tuple[int, int]:
    """(spent, held), over all periods."""
    (row,) = await run(
        database,
        "SELECT coalesce(sum(spent_usd_micros), 0) AS spent, coalesce(sum(held_usd_micros), 0) AS held"
        " FROM budget_periods WHERE budget_id = :id",
        id=name,
    )
    return int(row.spent), int(row.held)


def ending(held: Claim, output: int, failure: Failure | None = None) -> Ending:
    usage = Usage(PROMPT, 0, output)
    state = TaskState.FAILED if failure else TaskState.COMPLETED
    cost = cost_usd_micros(usage, held.tariff)
    return Ending(held.task_id, held.attempt, state, usage, cost, 0, held.tariff.id, failure=failure)


async def claimed(database: AsyncEngine, new: NewTask) -> Claim:
    return (await claim(database, [new.id], HOLDER))[new.id]


async def balanced(database: AsyncEngine, *, at_rest: bool = True) -> None:
    async with database.connect() as connection:
        await books.check(connection, at_rest=at_rest)


async def test_submits_at_once_overspend_a_hard_budget_by_less_than_one_hold(
    database: AsyncEngine, caller: Caller
) -> None:
    name = await budget(database, caller, 5 * HOLD + 1)
    results = await asyncio.gather(
        *(submit(database, task(caller)) for _ in range(20)), return_exceptions=True
    )
    refused = [one for one in results if isinstance(one, BudgetExhaustedError)]
    assert (len(results) - len(refused), len(refused)) == (6, 14)
    assert await standing(database, name) == (0, 6 * HOLD)
    assert not refused[0].standing.spent_up, "open tasks may leave something of their holds"


async def test_settling_turns_the_hold_into_what_the_task_did_cost(
    database: AsyncEngine, caller: Caller
) -> None:
    name = await budget(database, caller, 10 * HOLD)
    new = task(caller)
    await submit(database, new)
    await settle(database, [ending(await claimed(database, new), 5)])
    assert await standing(database, name) == (1500, 0)
    await balanced(database)


async def test_every_budget_of_tenant_and_key_counts_and_the_tightest_one_refuses(
    database: AsyncEngine, caller: Caller
) -> None:
    wide = await budget(database, caller, 100 * HOLD, period="total")
    tight = await budget(database, caller, HOLD, of_key=True)
    await submit(database, task(caller))
    with pytest.raises(BudgetExhaustedError) as caught:
        await submit(database, task(caller))
    assert caught.value.standing.id == tight
    assert await standing(database, wide) == (0, HOLD)
    other = await authenticate(
        database, await create_key(database, tenant="default", name="other", pepper=PEPPER), PEPPER
    )
    assert other is not None
    await submit(database, task(other.caller))
    assert await standing(database, wide) == (0, 2 * HOLD)
    assert await standing(database, tight) == (0, HOLD)


async def test_a_window_of_tasks_is_let_through_as_far_as_the_budget_reaches(
    database: AsyncEngine, caller: Caller
) -> None:
    name = await budget(database, caller, 3 * HOLD)
    new = [task(caller) for _ in range(8)]
    async with database.begin() as connection:
        times = await insert_within_budgets(connection, new)
    assert list(times) == [one.id for one in new[:3]]
    assert await standing(database, name) == (0, 3 * HOLD)
    assert len(await run(database, "SELECT 1 FROM task_payloads")) == 3


async def test_a_budget_whose_money_is_spent_is_told_apart_from_one_that_is_held(
    database: AsyncEngine, caller: Caller
) -> None:
    await budget(database, caller, 1500)
    new = task(caller)
    await submit(database, new)
    await settle(database, [ending(await claimed(database, new), 5)])
    with pytest.raises(BudgetExhaustedError, match=r"0\.0015 of 0\.0015 USD spent") as caught:
        await submit(database, task(caller))
    assert caught.value.standing.spent_up


@pytest.mark.parametrize("way", ["cancel", "expire", "give_up", "forbidden", "fail", "lost", "late"])
async def test_every_way_to_end_releases_the_hold(database: AsyncEngine, caller: Caller, way: str) -> None:
    name = await budget(database, caller, 10 * HOLD)
    new = task(caller, max_attempts=1, deadline_s=-1 if way == "expire" else 3600)
    await submit(database, new)
    assert await standing(database, name) == (0, HOLD)
    if way == "cancel":
        await cancel(database, caller.tenant_id, new.id)
    elif way == "expire":
        await expire(database, limit=10)
    elif way == "give_up":
        await give_up(database, new.id, Failure.NOT_STARTED_IN_TIME)
    elif way == "forbidden":
        await run(database, "DELETE FROM grants")
        assert not await claim(database, [new.id], HOLDER)
        assert await end_forbidden(database, [new.id]) == [new.id]
    elif way == "fail":
        await settle(database, [ending(await claimed(database, new), 5, Failure.ENGINE_ERROR)])
    else:
        held = await claimed(database, new)
        await renew(database, [Held(new.id, held.attempt, used=Used(Usage(PROMPT, 0, 4), 0))], 30.0)
        await run(
            database,
            "UPDATE tasks SET exposed = true, deadline_at = now() + :s * interval '1 second'",
            s=-1 if way == "late" else 3600,
        )
        await end_lease(database, new.id)
        await rescue(database, limit=10, count_streamed=cannot_tell)
    # a task that ends for its deadline pays for what it generated, one that we lost does not
    assert await standing(database, name) == (1400 if way == "late" else 0, 0)
    await balanced(database)


async def cannot_tell(task_id: str) -> int | None:
    return None


async def test_doing_a_failed_task_again_holds_again_and_is_refused_like_a_submit(
    database: AsyncEngine, caller: Caller
) -> None:
    name = await budget(database, caller, 2 * HOLD)
    new = task(caller, request='{"messages":[],"n":2}')
    await submit(database, new)
    await settle(database, [ending(await claimed(database, new), 5, Failure.ENGINE_ERROR)])
    assert await retry(database, new.id, caller.tenant_id)
    assert await standing(database, name) == (0, hold_usd_micros(PROMPT, 2 * OUTPUT, PRICE))
    await submit(database, task(caller))
    with pytest.raises(BudgetExhaustedError):
        await retry(database, new.id, caller.tenant_id)


async def test_a_task_counts_in_the_month_in_which_it_was_accepted(
    database: AsyncEngine, caller: Caller
) -> None:
    name = await budget(database, caller, 10 * HOLD)
    new = task(caller)
    await submit(database, new)
    async with database.begin() as connection:  # as if a month had passed since
        await connection.execute(sa.text("SET CONSTRAINTS ALL DEFERRED"))
        await connection.execute(
            sa.text(
                "INSERT INTO budget_periods SELECT budget_id, CAST(period_start - interval '1 month' AS date),"
                " 0, held_usd_micros FROM budget_periods"
            )
        )
        await connection.execute(
            sa.text("UPDATE holds SET period_start = CAST(period_start - interval '1 month' AS date)")
        )
        await connection.execute(
            sa.text(
                "DELETE FROM budget_periods WHERE period_start = (SELECT max(period_start) FROM budget_periods)"
            )
        )
        await connection.execute(sa.text("UPDATE tasks SET created_at = created_at - interval '1 month'"))
        await connection.execute(sa.text("UPDATE tariffs SET valid_until = NULL"))
    later = task(caller)
    await submit(database, later)
    held = await claim(database, [new.id, later.id], HOLDER)
    await settle(database, [ending(held[new.id], 5), ending(held[later.id], 0)])
    rows = await run(
        database,
        "SELECT spent_usd_micros AS spent FROM budget_periods WHERE budget_id = :id ORDER BY period_start",
        id=name,
    )
    assert [row.spent for row in rows] == [0, 1000], "the earlier month had no price yet"
    await balanced(database)


async def test_what_a_tasks_end_left_held_is_released_by_the_reconciler(
    database: AsyncEngine, caller: Caller
) -> None:
    name = await budget(database, caller, 10 * HOLD)
    new = task(caller)
    await submit(database, new)
    await run(
        database,
        "UPDATE tasks SET state = 'cancelled', finished_at = now(), usage_prompt_tokens = 0,"
        " usage_cached_tokens = 0, usage_output_tokens = 0",
    )
    assert (await tend_budgets(database, limit=10)).released == 1
    assert await standing(database, name) == (0, 0)
    assert (await tend_budgets(database, limit=10)).released == 0


async def test_a_budget_counts_what_was_spent_before_it_was_set(
    database: AsyncEngine, caller: Caller
) -> None:
    new = replace(task(caller), hold_usd_micros=None)
    await submit(database, new)
    await settle(database, [ending(await claimed(database, new), 5)])
    name = await budget(database, caller, 10 * HOLD)
    async with database.begin() as connection:
        await budgets.begin_periods(connection, caller.tenant_id, caller.key_id)
        await budgets.recount(connection, name)
    assert await standing(database, name) == (1500, 0)
    await balanced(database)


async def test_a_soft_threshold_that_is_passed_is_told_of_once_a_period(
    database: AsyncEngine, caller: Caller
) -> None:
    name = await budget(database, caller, None)
    await run(database, "UPDATE budgets SET soft_usd_micros = 1000, webhook = 'https://example.com/spent'")
    for passed in (1, 0, 0):
        new = task(caller)
        await submit(database, new)
        assert (await tend_budgets(database, limit=10)).past_soft == 0, "what is only held is not spent"
        await settle(database, [ending(await claimed(database, new), 5)])
        assert (await tend_budgets(database, limit=10)).past_soft == passed
    (delivery,) = await run(database, "SELECT * FROM webhook_deliveries")
    assert (delivery.type, delivery.state) == ("budget.soft_threshold_passed", "pending")
    about = json.loads(delivery.body)["data"]
    assert (about["id"], about["spent_usd_micros"], about["soft_usd_micros"]) == (name, 1500, 1000)


OPERATIONS = [
    *(
        "submit",
        "submit",
        "submit",
        "claim",
        "claim",
        "step",
        "settle",
        "settle",
        "cancel",
        "retry",
        "preempt",
    ),
    *("crash", "late_settle", "expire"),
]
_schedules = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 99), st.integers(0, OUTPUT)),
    min_size=5,
    max_size=40,
)


class Schedule:
    """Any order of what can happen to tasks, as the services do it."""

    def __init__(self, database: AsyncEngine, caller: Caller) -> None:
        self._database, self._caller = database, caller
        self._claims: list[tuple[Claim, Used]] = []  # of every attempt that thinks it holds its task
        self._stale: list[tuple[Claim, Used]] = []
        self._new: list[NewTask] = []

    async def do(self, operation: str, which: int, tokens: int) -> None:
        """Do one, on the task or attempt of that number; where it does not apply, nothing."""
        database = self._database
        if operation == "submit":
            new = task(self._caller, max_attempts=2)
            try:
                await submit(database, new)
                self._new.append(new)
            except BudgetExhaustedError:
                return
        elif operation == "claim" and self._new:
            found = await claim(database, [self._new[which % len(self._new)].id], HOLDER)
            self._claims += [(one, one.used) for one in found.values()]
        elif operation == "cancel" and self._new:
            await cancel(database, self._caller.tenant_id, self._new[which % len(self._new)].id)
        elif operation == "retry" and self._new:
            try:
                await retry(database, self._new[which % len(self._new)].id, self._caller.tenant_id)
            except BudgetExhaustedError:
                return
        elif operation == "expire" and self._new:
            id_ = self._new[which % len(self._new)].id
            await run(
                database, "UPDATE tasks SET deadline_at = now() WHERE id = :id AND state = 'queued'", id=id_
            )
            await expire(database, limit=10)
        elif self._claims or (operation == "late_settle" and self._stale):
            await self._attempt(operation, which, tokens)

    async def _attempt(self, operation: str, which: int, tokens: int) -> None:
        database = self._database
        if operation == "late_settle":  # of an attempt that lost its task: nothing may change
            if self._stale:
                held, _ = self._stale[which % len(self._stale)]
                assert await settle(database, [ending(held, tokens)]) == {}
            return
        if operation not in ("step", "settle", "preempt", "crash"):
            return
        place = which % len(self._claims)
        held, used = self._claims[place]
        used = Used(Usage(PROMPT, 0, max(tokens, used.usage.output_tokens)), used.engine_us + tokens * 1000)
        if operation == "step":
            self._claims[place] = held, used
            await renew(database, [Held(held.task_id, held.attempt, cleared=tokens > 3, used=used)], 30.0)
            return
        del self._claims[place]
        if operation == "settle":
            failure = Failure.ENGINE_ERROR if tokens % 5 == 4 else None
            end = replace(
                ending(held, used.usage.output_tokens, failure),
                engine_us=used.engine_us,
                cost_usd_micros=cost_usd_micros(used.usage, held.tariff, used.engine_us),
            )
            await settle(database, [end])
        elif operation == "preempt":
            await hand_back(
                database, held.task_id, held.attempt, Failure.WORKER_DRAINED, exposed=False, used=used
            )
        elif operation == "crash":
            await run(
                database,
                "UPDATE tasks SET lease_expires_at = now() - interval '1 second'"
                " WHERE id = :id AND attempt = :attempt AND lease_expires_at IS NOT NULL",
                id=held.task_id,
                attempt=held.attempt,
            )
            await rescue(database, limit=10, count_streamed=cannot_tell)
        self._stale.append((held, used))

    async def end(self) -> None:
        """End whatever is open."""
        rows = await run(self._database, "SELECT id FROM tasks WHERE finished_at IS NULL")
        for row in rows:
            await cancel(self._database, self._caller.tenant_id, row.id)
        await run(
            self._database,
            "UPDATE tasks SET lease_expires_at = now() - interval '1 second' WHERE lease_expires_at IS NOT NULL",
        )
        await rescue(self._database, limit=1000, count_streamed=cannot_tell)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=_schedules, hard=st.integers(0, 12))
async def test_any_schedule_keeps_ledger_equal_to_usage_and_spending_within_a_hold_of_the_budget(
    database: AsyncEngine, caller: Caller, schedule: list[tuple[str, int, int]], hard: int
) -> None:
    async with database.begin() as connection:
        await connection.execute(sa.delete(tasks))
        await connection.execute(sa.text("DELETE FROM budgets"))
    await forget_ledger(database)
    await budget(database, caller, hard * HOLD // 2)
    await budget(database, caller, hard * HOLD, period="total", of_key=True)
    drama = Schedule(database, caller)
    for operation, which, tokens in schedule:
        await drama.do(operation, which, tokens)
        async with database.connect() as connection:
            await books.check(connection)
            assert await books.overspent(connection) <= HOLD
    await drama.end()
    await balanced(database)


async def forget_ledger(database: AsyncEngine) -> None:
    """Empty the ledger, which takes more than a DELETE."""
    async with database.begin() as connection:
        await connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        await connection.execute(sa.text("DELETE FROM ledger_entries"))
