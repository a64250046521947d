"""Accept tasks as far as their owner's budgets reach."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from core.budgets import Standing
from core.pricing import hold_usd_micros
from schemas.text import prompts_of
from storage import budgets, tariffs, tasks
from storage.records import NewTask


class BudgetExhaustedError(Exception):
    """A hard budget has no room for a task; `standing` is the one."""

    def __init__(self, standing: Standing) -> None:
        super().__init__(standing.describe())
        self.standing = standing


async def insert_within_budgets(
    connection: AsyncConnection, new: Sequence[NewTask]
) -> dict[str, tuple[datetime, datetime, bool]]:
    """Insert tasks of one owner; return id → (created, deadline, stored) of those that were, the first ones.

    Raises: BudgetExhaustedError where there is room for none. Its standing says whether open tasks may still
    make some (`spent_up`).
    """
    while True:
        times = await tasks.insert_tasks(connection, new)
        if times or not new or new[0].hold_usd_micros is None:
            return times
        caller = new[0].caller
        if await budgets.begin_periods(connection, caller.tenant_id, caller.key_id):
            continue  # the first task of a month
        standings = await budgets.standings_of(connection, caller.tenant_id, caller.key_id)
        full = [one for one in standings if one.exhausted]
        if full:
            raise BudgetExhaustedError(next((one for one in full if one.spent_up), full[0]))
        # room came free between the two statements


async def hold_again(connection: AsyncConnection, task: NewTask) -> NewTask:
    """Say what a task made of an earlier one holds at the prices of now."""
    if not await budgets.standings_of(connection, task.caller.tenant_id, task.caller.key_id):
        return task
    body = orjson.loads(task.request)
    prompts = len(prompts_of(body["prompt"])) if body.get("prompt") is not None else 1
    most = task.max_output_tokens * (body.get("n") or 1) * prompts
    prices = await tariffs.prices_in_force(connection, [task.lane.model])
    return replace(task, hold_usd_micros=hold_usd_micros(task.prompt_tokens, most, prices.of(task.lane)))
