"""A tenant's bound on what it runs at once, held by the claim."""

import asyncio
from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure
from core.lanes import Lane, LengthClass, Priority
from core.states import TaskState
from services.attempt import Holder, claim_bounded, end_forbidden, hand_back
from services.attempt import claim as claim_unbounded
from services.dispatch import look, look_around, read_heads
from services.explain import look_at
from services.look_up import look_up
from services.publish import note_published
from services.tend import rescue
from storage.autocommit import autocommit
from storage.outbox import Outgoing
from storage.records import Caller, Claim, NewTask
from storage.tables import grants, tenants
from tests.support.seeds import MODEL, end_lease, seed_caller, seed_task

HOLDER = Holder("w1", MODEL, 30.0)


@pytest.fixture
async def caller(database: AsyncEngine) -> Caller:
    """Of a tenant that runs at most two tasks."""
    caller = await seed_caller(database)
    async with autocommit(database) as connection:
        bounded = sa.update(tenants).where(tenants.c.id == caller.tenant_id)
        await connection.execute(bounded.values(max_running_tasks=2))
    return caller


async def claim(database: AsyncEngine, task_ids: Sequence[str], holder: Holder = HOLDER) -> dict[str, Claim]:
    """As a worker does."""
    claimed = await claim_unbounded(database, task_ids, holder)
    missed = [task_id for task_id in task_ids if task_id not in claimed]
    claimed |= await claim_bounded(database, missed, holder)
    await end_forbidden(database, [task_id for task_id in missed if task_id not in claimed])
    return claimed


async def published(database: AsyncEngine, caller: Caller, count: int) -> list[NewTask]:
    new = [await seed_task(database, caller) for _ in range(count)]
    await note_published(database, [Outgoing(one.id, one.lane) for one in new])
    return new


async def nothing_streamed(_: str) -> int | None:
    return 0


async def unpublished(database: AsyncEngine) -> dict[str, int]:
    """Ids of what the dispatcher may send, and how often each was turned back."""
    groups = (await look(database, await look_around(database), older_s=-1.0)).groups
    waiting = await read_heads(database, groups, 100, older_s=-1.0) if groups else []
    return {one.id: one.turned_back for one in waiting}


async def test_no_more_is_claimed_than_the_tenant_may_run_and_the_rest_waits_for_the_dispatcher(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await published(database, caller, 4)
    others = await published(database, await seed_caller(database, "other"), 3)
    claimed = await claim(database, [one.id for one in (*new, *others)], HOLDER)
    assert set(claimed) == {one.id for one in (*new[:2], *others)}
    assert await unpublished(database) == {new[2].id: 1, new[3].id: 1}
    assert await claim(database, [new[2].id], HOLDER) == {}
    assert await unpublished(database) == {new[2].id: 2, new[3].id: 1}


@pytest.mark.parametrize("end", ["hand_back", "rescue"])
async def test_a_place_is_free_again_once_a_task_runs_no_more(
    database: AsyncEngine, caller: Caller, end: str
) -> None:
    new = await published(database, caller, 3)
    claimed = await claim(database, [one.id for one in new], HOLDER)
    if end == "hand_back":
        first = claimed[new[0].id]
        assert await hand_back(database, first.task_id, first.attempt, Failure.WORKER_DRAINED, exposed=False)
    else:
        await end_lease(database, new[0].id)
        await rescue(database, limit=10, count_streamed=nothing_streamed)
    assert list(await claim(database, [new[2].id], HOLDER)) == [new[2].id]


async def test_who_published_what_was_turned_back_since_does_not_mark_it(
    database: AsyncEngine, caller: Caller
) -> None:
    """Marked, it would wait for a message that there is no more."""
    await claim(database, [one.id for one in await published(database, caller, 2)], HOLDER)
    late = await seed_task(database, caller)
    sent = Outgoing(late.id, late.lane)
    await claim(database, [late.id], HOLDER)  # the message was quicker than the mark
    await note_published(database, [sent])
    assert await unpublished(database) == {late.id: 1}
    await note_published(database, [Outgoing(late.id, late.lane, turned_back=1)])
    assert await unpublished(database) == {}


async def test_workers_that_claim_at_the_same_time_do_not_count_the_same_place(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await published(database, caller, 24)
    claims = await asyncio.gather(
        *(claim(database, [one.id for one in new[n::6]], Holder(f"w{n}", MODEL, 30.0)) for n in range(6))
    )
    assert sum(map(len, claims)) == 2


async def test_a_bounded_tenants_task_still_ends_as_forbidden_when_its_grant_is_gone(
    database: AsyncEngine, caller: Caller
) -> None:
    (new,) = await published(database, caller, 1)
    async with autocommit(database) as connection:
        await connection.execute(sa.delete(grants).where(grants.c.tenant_id == caller.tenant_id))
    assert await claim(database, [new.id], HOLDER) == {}
    task = await look_up(database, caller.tenant_id, new.id)
    assert task is not None
    assert (task.state, task.failure) == (TaskState.FAILED, Failure.FORBIDDEN)


async def test_what_waits_for_its_own_tenants_place_is_known_to(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await published(database, caller, 3)
    lane = Lane(MODEL, LengthClass.SHORT, Priority.STANDARD)
    found = await look_at(database, lane, new[2].id)
    assert found is not None and not found.standing.at_bound
    await claim(database, [one.id for one in new], HOLDER)
    found = await look_at(database, lane, new[2].id)
    assert found is not None and found.standing.at_bound
