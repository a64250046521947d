"""Limits of grants, as whoever submits meets them."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure
from core.grants import GrantLimits, find_breach
from core.lanes import Priority
from core.states import TaskState
from services.attempt import Holder, claim, end_forbidden
from services.look_up import look_up
from services.manage_grants import delete_grant, put_grant
from services.manage_tenants import change_tenant
from services.submit import TooManyOpenError, submit
from storage.audit import Actor
from tests.support.seeds import MODEL, new_task, opened, seed_caller, seed_task

ACTOR = Actor("test")
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("limits", "breached"),
    [
        (GrantLimits(), None),
        (GrantLimits(10, 20, 1, (Priority.STANDARD,), (CHAT,)), None),
        (GrantLimits(max_prompt_tokens=9), "max_prompt_tokens"),
        (GrantLimits(max_output_tokens=19), "max_output_tokens"),
        (GrantLimits(priorities=(Priority.BATCH,)), "priorities"),
        (GrantLimits(endpoints=("/v1/completions",)), "endpoints"),
    ],
)
def test_the_first_limit_gone_beyond_is_named(limits: GrantLimits, breached: str | None) -> None:
    breach = find_breach(limits, url=CHAT, priority=Priority.STANDARD, prompt_tokens=10, max_output_tokens=20)
    assert (breach.limit if breach else None) == breached


async def test_many_submits_at_once_open_no_more_tasks_than_granted(database_url: str) -> None:
    async with opened(database_url) as one, opened(database_url) as two:  # as two API processes have it
        caller = await seed_caller(one)
        await put_grant(one, ACTOR, caller.tenant_id, MODEL, GrantLimits(max_open_tasks=3))

        async def attempt(database: AsyncEngine) -> bool:
            new = new_task(caller)
            object.__setattr__(new, "max_open_tasks", 3)
            try:
                await submit(database, new)
            except TooManyOpenError:
                return False
            return True

        done = await asyncio.gather(*(attempt(database) for database in (one, two) for _ in range(8)))
        assert sum(done) == 3


@pytest.mark.parametrize("lost", ["grant", "tenant"])
async def test_what_waits_for_a_model_that_was_taken_away_ends_as_forbidden(
    database_url: str, lost: str
) -> None:
    async with opened(database_url) as database:
        caller = await seed_caller(database)
        task = await seed_task(database, caller)
        if lost == "grant":
            await delete_grant(database, ACTOR, "default", MODEL)
        else:
            await change_tenant(database, ACTOR, "default", {"disabled": True}, of="")
        assert await claim(database, [task.id], Holder("worker", MODEL, 5.0)) == {}
        assert await end_forbidden(database, [task.id]) == [task.id]
        assert await end_forbidden(database, [task.id]) == []
        ended = await look_up(database, caller.tenant_id, task.id)
        assert ended is not None
        assert (ended.state, ended.failure) == (TaskState.FAILED, Failure.FORBIDDEN)
