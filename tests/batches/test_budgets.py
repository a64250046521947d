"""What becomes of a batch whose owner's budget is short."""

import sqlalchemy as sa

from core.batches import BatchState
from services.manage_budgets import put_budget
from storage.audit import Actor
from tests.batches.test_exactly_once import LINES, Hands, hands

__all__ = ["hands"]  # a fixture
COST = 7  # micro-USD that each task of these turns out to cost, far below what it holds


async def set_budget(hands: Hands, hard: int) -> None:
    terms = {"soft_usd_micros": None, "hard_usd_micros": hard, "webhook": None}
    await put_budget(hands.database, Actor("test"), tenant="default", key=None, period="month", terms=terms)


async def hold_of_one(hands: Hands) -> int:
    (row,) = await hands.query("SELECT max(usd_micros) AS hold FROM holds")
    return int(row.hold)


async def test_lines_wait_while_open_tasks_hold_what_is_left_and_all_of_them_run(hands: Hands) -> None:
    await set_budget(hands, 2000)  # two or three of them at a time, and more than all of them cost
    await hands.begin()
    expand, open_ = hands.expansion(), []
    while (batch := await hands.batch()).state is BatchState.IN_PROGRESS:
        await expand()
        open_.append((await hands.query("SELECT count(*) FROM tasks WHERE finished_at IS NULL"))[0][0])
        if open_[-1]:
            assert (open_[-1] - 1) * await hold_of_one(hands) < 2000
            before = open_[-1]
            await expand()
            (row,) = await hands.query("SELECT count(*) FROM tasks WHERE finished_at IS NULL")
            assert row[0] == before, "nothing more is accepted while those hold the budget"
        await hands.run_queued()
        await hands.results()
    assert (batch.state, batch.completed, batch.failed) == (BatchState.COMPLETED, LINES, 0)
    assert max(open_) < 16


async def test_once_the_budget_is_spent_the_remaining_lines_fail_by_name_and_the_batch_ends(
    hands: Hands,
) -> None:
    await set_budget(hands, 8 * COST)
    await hands.begin()
    expand = hands.expansion()
    while (batch := await hands.batch()).state is BatchState.IN_PROGRESS:
        await expand()
        await hands.run_queued()
        await hands.results()
    assert (batch.state, batch.completed, batch.failed) == (BatchState.COMPLETED, 8, LINES - 8)
    errors = await hands.lines_of(batch.error_file_id)
    assert len(errors) == LINES - 8
    assert {line["response"]["status_code"] for line in errors} == {429}  # type: ignore[index]
    assert {line["response"]["body"]["error"]["code"] for line in errors} == {"budget_exhausted"}  # type: ignore[index]
    (row,) = await hands.query(
        "SELECT spent_usd_micros AS spent, held_usd_micros AS held FROM budget_periods"
    )
    assert (row.spent, row.held) == (8 * COST, 0)


async def test_a_batch_without_a_budget_holds_nothing(hands: Hands) -> None:
    await hands.begin(3)
    await hands.expansion()()
    assert (await hands.query("SELECT count(*) FROM holds"))[0][0] == 0
    async with hands.database.connect() as connection:
        assert await connection.scalar(sa.text("SELECT count(*) FROM tasks")) == 3
