"""The queue's heads and counts, on a real Postgres."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Lane, LengthClass, Priority
from core.pace import Ended, Pace
from core.pricing import Usage
from core.ranking import rank_delay_s
from core.states import TaskState
from services.attempt import Holder, claim, settle
from services.cancel import cancel
from services.dispatch import (
    expire_late,
    fold_counts,
    lift_shares,
    look,
    look_around,
    read_heads,
    read_mates,
    read_oldest,
    read_paces,
    write_paces,
)
from services.measure import read_backlog
from services.publish import note_published
from services.submit import submit
from storage.autocommit import autocommit
from storage.outbox import Outgoing
from storage.queue_heads import Group
from storage.queue_tables import backlogs, queue_deltas
from storage.records import Caller, Ending, NewTask
from storage.tables import tasks, tenants
from tests.support.seeds import MODEL, new_task, seed_caller

NOW = -1.0  # tasks of this very moment count as waiting


async def queued(
    database: AsyncEngine,
    caller: Caller,
    *,
    tokens: int = 30,
    priority: Priority = Priority.STANDARD,
    length_class: LengthClass = LengthClass.SHORT,
    prefix: int | None = None,
) -> NewTask:
    new = replace(
        new_task(caller, priority=priority),
        lane=Lane(MODEL, length_class, priority),
        max_output_tokens=tokens - 10,
        prefix_key=prefix,
    )
    await submit(database, new)
    return new


async def heads(database: AsyncEngine, most: int = 10) -> dict[Group, list[str]]:
    groups = (await look(database, await look_around(database), older_s=NOW)).groups
    found: dict[Group, list[str]] = {group: [] for group in groups}
    for one in await read_heads(database, groups, most, older_s=NOW) if groups else []:
        found[one.group].append(one.id)
    return found


async def counts(database: AsyncEngine) -> dict[str, tuple[int, int]]:
    return {one.tenant_id: (one.tasks, one.tokens) for one in await read_backlog(database)}


async def test_groups_are_one_tenants_tasks_of_one_lane_and_shorter_ones_go_first(
    database: AsyncEngine, caller: Caller
) -> None:
    other = await seed_caller(database, "other")
    long = await queued(database, caller, tokens=300)
    short = await queued(database, caller, tokens=20)
    batch = await queued(database, caller, priority=Priority.BATCH)
    theirs = await queued(database, other)
    assert await heads(database) == {
        Group(short.lane, caller.tenant_id): [short.id, long.id],
        Group(batch.lane, caller.tenant_id): [batch.id],
        Group(theirs.lane, other.tenant_id): [theirs.id],
    }
    assert next(iter((await heads(database, 1)).values())) in ([short.id], [batch.id])


async def test_what_the_broker_has_is_in_flight_and_waits_no_more(
    database: AsyncEngine, caller: Caller
) -> None:
    sent, running = await queued(database, caller), await queued(database, caller)
    await note_published(database, [Outgoing(sent.id, sent.lane)])
    await claim(database, [running.id], Holder("w1", MODEL, 30.0))
    view = await look(database, await look_around(database), older_s=NOW)
    assert view.groups == []
    assert {(one.worker, one.tasks, one.tokens) for one in view.in_flight} == {(None, 1, 30), ("w1", 1, 30)}


async def test_a_fresh_task_is_left_to_who_accepted_it(database: AsyncEngine, caller: Caller) -> None:
    await queued(database, caller)
    assert (await look(database, await look_around(database), older_s=60.0)).groups == []


async def test_the_rank_in_the_row_is_the_one_of_the_rule(database: AsyncEngine, caller: Caller) -> None:
    async def delay(new: NewTask) -> float:
        async with autocommit(database) as connection:
            query = sa.select(tasks.c.rank_at - tasks.c.created_at).where(tasks.c.id == new.id)
            return float((await connection.execute(query)).scalar_one().total_seconds())

    assert await delay(await queued(database, caller, tokens=100)) == pytest.approx(
        rank_delay_s(10, 90, 3600, None)
    )
    await write_paces(database, {MODEL: Pace(finished_per_s=1.0)})  # something is known, but no rate
    assert await delay(await queued(database, caller, tokens=100)) == pytest.approx(
        rank_delay_s(10, 90, 3600, None)
    )
    await write_paces(database, {MODEL: Pace(tokens_per_s=1000.0)})
    assert await delay(await queued(database, caller, tokens=100)) == pytest.approx(
        rank_delay_s(10, 90, 3600, 1000.0), abs=1e-5
    )
    urgent = replace(new_task(caller, deadline_s=0.5))
    await submit(database, urgent)
    assert await delay(urgent) == pytest.approx(rank_delay_s(10, 20, 0.5, 1000.0), abs=1e-5)
    line = await queued(database, caller, tokens=100, priority=Priority.BATCH)
    assert await delay(line) == pytest.approx(rank_delay_s(10, 90, 3600, 1000.0, Priority.BATCH), abs=1e-5)
    in_order = replace(new_task(caller), in_order=True)
    await submit(database, in_order)
    assert await delay(in_order) == 0


async def test_tasks_of_one_prefix_are_found_wherever_they_stand(
    database: AsyncEngine, caller: Caller
) -> None:
    made = [await queued(database, caller, priority=Priority.BATCH, prefix=n % 2) for n in range(6)]
    group = Group(made[0].lane, caller.tenant_id)
    mates = await read_mates(database, {group: 1}, 2, older_s=NOW)
    assert [one.id for one in mates] == [made[1].id, made[3].id]


async def test_the_oldest_are_read_whoever_they_belong_to(database: AsyncEngine, caller: Caller) -> None:
    long = await queued(database, caller, tokens=500)
    short = await queued(database, await seed_caller(database, "other"))
    view = await look(database, await look_around(database), older_s=NOW)
    found = await read_oldest(database, view.groups, older_s=NOW, limit=10)
    assert [one.id for one in found] == [long.id, short.id]


async def test_counts_follow_every_way_into_and_out_of_the_queue(
    database: AsyncEngine, caller: Caller
) -> None:
    new = [await queued(database, caller) for _ in range(5)]
    assert await counts(database) == {caller.tenant_id: (5, 150)}
    held = (await claim(database, [new[0].id], Holder("w1", MODEL, 30.0)))[new[0].id]
    await cancel(database, caller.tenant_id, new[1].id)
    assert await expire_late(database, [new[2].id, new[0].id]) == [new[2].id]
    async with autocommit(database) as connection:
        await connection.execute(sa.delete(tasks).where(tasks.c.id == new[3].id))
    assert await counts(database) == {caller.tenant_id: (1, 30)}
    await fold_counts(database, limit=1000)
    assert await counts(database) == {caller.tenant_id: (1, 30)}
    usage = Usage(prompt_tokens=10, cached_tokens=0, output_tokens=7)
    ending = Ending(held.task_id, held.attempt, TaskState.COMPLETED, usage, response="{}")
    await settle(database, [ending])
    ended = (await fold_counts(database, limit=1000))[MODEL]
    assert (ended.finished, ended.retired_tokens, ended.output_tokens, ended.max_output_tokens) == (
        1,
        30,
        7,
        20,
    )
    assert ended.run_s > 0
    assert await fold_counts(database, limit=1000) == {}
    await queued(database, caller)
    served = (await look(database, await look_around(database), older_s=NOW)).served
    assert served == {(MODEL, caller.tenant_id): 17.0}


async def test_what_nobody_queues_any_more_leaves_no_row(database: AsyncEngine, caller: Caller) -> None:
    new = await queued(database, caller)
    await fold_counts(database, limit=1000)
    await cancel(database, caller.tenant_id, new.id)
    await fold_counts(database, limit=1000)
    async with autocommit(database) as connection:
        for table in (backlogs, queue_deltas):
            assert (await connection.execute(sa.select(sa.func.count()).select_from(table))).scalar_one() == 0


async def test_a_heavier_tenants_counter_rises_less(database: AsyncEngine, caller: Caller) -> None:
    async with autocommit(database) as connection:
        await connection.execute(sa.update(tenants).values(weight=2.0))
    new = await queued(database, caller)
    held = (await claim(database, [new.id], Holder("w1", MODEL, 30.0)))[new.id]
    usage = Usage(prompt_tokens=10, cached_tokens=0, output_tokens=10)
    await settle(database, [Ending(held.task_id, held.attempt, TaskState.COMPLETED, usage, response="{}")])
    await fold_counts(database, limit=1000)
    await queued(database, caller)
    view = await look(database, await look_around(database), older_s=NOW)
    assert view.served == {(MODEL, caller.tenant_id): 10.0}
    assert view.weights == {caller.tenant_id: 2.0}


async def test_a_counter_is_lifted_and_never_lowered(database: AsyncEngine, caller: Caller) -> None:
    await queued(database, caller)
    await lift_shares(database, MODEL, {caller.tenant_id: 50.0})
    await lift_shares(database, MODEL, {caller.tenant_id: 20.0})
    assert (await look(database, await look_around(database), older_s=NOW)).served == {
        (MODEL, caller.tenant_id): 50.0
    }


async def test_a_pace_is_read_as_it_was_written(database: AsyncEngine, caller: Caller) -> None:
    pace = Pace(1000.0, 3.5, 2.0, 0.05, 0.7, 64)
    await write_paces(database, {MODEL: pace})
    assert await read_paces(database) == {MODEL: pace}
    assert Ended() == Ended(0, 0, 0, 0, 0.0)
