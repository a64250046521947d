"""What must be true of tasks, ledger, holds and budgets whenever nothing is in a transaction."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.failures import RULES, Failure
from core.pricing import FREE, Tariff, Usage, cost_usd_micros
from storage import budgets

_TASKS = """
SELECT t.*, l.id AS entry, l.prompt_tokens AS billed_prompt, l.cached_tokens AS billed_cached,
  l.output_tokens AS billed_output, l.engine_us AS billed_us, l.cost_usd_micros AS cost,
  p.prompt_usd_micros, p.cached_usd_micros, p.output_usd_micros, p.engine_usd_micros, p.id AS tariff
FROM tasks t LEFT JOIN ledger_entries l ON l.task_id = t.id LEFT JOIN tariffs p ON p.id = l.tariff_id
"""


def expected_entry(task: Any) -> tuple[int, int, int, int, int]:
    """(prompt, cached, output, engine µs, cost) that a final task's entry must have."""
    failure = Failure(task.failure) if task.failure else None
    if failure is not None and not RULES[failure].billed:
        return 0, 0, 0, 0, 0
    usage = Usage(task.usage_prompt_tokens, task.usage_cached_tokens, task.usage_output_tokens)
    tariff = FREE
    if task.tariff is not None:
        tariff = Tariff(
            task.prompt_usd_micros, task.cached_usd_micros, task.output_usd_micros, task.engine_usd_micros
        )
    cost = cost_usd_micros(usage, tariff, task.engine_us)
    return usage.prompt_tokens, usage.cached_tokens, usage.output_tokens, task.engine_us, cost


async def check(connection: AsyncConnection, *, at_rest: bool = False) -> None:
    """Ledger = usage, task by task; sums of budgets = ledger and holds. `at_rest`: nothing is held either."""
    for task in await connection.execute(sa.text(_TASKS)):
        if task.finished_at is None:
            assert task.entry is None, f"{task.id} is open and charged"
            continue
        entry = (
            task.billed_prompt,
            task.billed_cached,
            task.billed_output,
            task.billed_us,
            task.cost,
        )
        assert entry == expected_entry(task), f"{task.id} ({task.state}, {task.failure})"
    assert list(await budgets.find_miscounted(connection)) == []
    assert await budgets.find_strays(connection, limit=10) == []
    rows = (await connection.execute(sa.text("SELECT * FROM budget_periods"))).all()
    assert all(row.held_usd_micros >= 0 for row in rows)
    if at_rest:
        assert all(row.held_usd_micros == 0 for row in rows)
        assert await connection.scalar(sa.text("SELECT count(*) FROM holds")) == 0


async def overspent(connection: AsyncConnection) -> int:
    """By how much the worst budget is above its hard threshold, in micro-USD."""
    worst = await connection.scalar(
        sa.text(
            "SELECT coalesce(max(spent_usd_micros + held_usd_micros - hard_usd_micros), 0)"
            " FROM budget_periods p JOIN budgets b ON b.id = p.budget_id"
        )
    )
    return int(worst or 0)
