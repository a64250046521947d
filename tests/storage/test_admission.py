"""Admission and explanations against a real queue."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Lane, LengthClass, Priority
from core.pace import Pace
from runtime.admission import Admission
from runtime.settings import Settings
from schemas.errors import RequestError
from services.dispatch import write_paces
from services.explain import look_at
from services.look_up import look_up
from services.publish import note_published
from services.workers import describe_worker
from storage.autocommit import autocommit
from storage.outbox import Outgoing
from storage.presence import WorkerRow
from storage.records import Caller, NewTask, Task
from storage.tables import tenants
from tests.support.seeds import MODEL, new_task, seed_caller, seed_task


def admission(database: AsyncEngine, **options: object) -> Admission:
    secret = SecretStr("x")
    settings = Settings(database_url=secret, broker_url=secret, streams_url=secret, key_pepper=secret)
    return Admission(database, settings.model_copy(update=options))


async def refusal(
    admission: Admission, new: NewTask, start_within_s: float | None = None
) -> tuple[int, str, int]:
    with pytest.raises(RequestError) as caught:
        await admission.admit(new, start_within_s)
    error = caught.value
    return error.status, error.code or "", int(error.headers["Retry-After"])


async def read(database: AsyncEngine, new: NewTask) -> Task:
    task = await look_up(database, new.caller.tenant_id, new.id)
    assert task is not None
    return task


async def worker(database: AsyncEngine, state: str, classes: str = "short") -> None:
    await describe_worker(database, WorkerRow("w1", MODEL, "deterministic", "1", classes, 4, 0, state), None)


async def test_a_full_lane_is_503_and_a_tenants_own_bound_429(database: AsyncEngine, caller: Caller) -> None:
    for _ in range(3):
        await seed_task(database, caller)
    assert (await refusal(admission(database, max_queued_tasks=3), new_task(caller)))[:2] == (
        503,
        "lane_full",
    )
    assert (await refusal(admission(database, max_tenant_queued_tokens=100), new_task(caller)))[:2] == (
        429,
        "tenant_queue_full",
    )
    await admission(database, max_tenant_queued_tasks=3).admit(new_task(await seed_caller(database, "other")))
    async with autocommit(database) as connection:
        await connection.execute(
            sa.update(tenants).values(max_queued_tasks=2).where(tenants.c.id == caller.tenant_id)
        )
    assert (await refusal(admission(database), new_task(caller)))[:2] == (429, "tenant_queue_full")


async def test_what_was_accepted_since_the_last_look_counts(database: AsyncEngine, caller: Caller) -> None:
    bounded = admission(database, max_queued_tasks=2)
    await bounded.admit(new_task(caller))
    await bounded.admit(new_task(caller))
    assert (await refusal(bounded, new_task(caller)))[1] == "lane_full"


async def test_a_deadline_that_cannot_be_met_is_refused_with_the_time_that_it_takes(
    database: AsyncEngine, caller: Caller
) -> None:
    await write_paces(database, {MODEL: Pace(tokens_per_s=10.0)})
    for _ in range(10):
        await seed_task(database, caller)
    assert await refusal(admission(database), new_task(caller, deadline_s=10.0)) == (
        503,
        "deadline_unreachable",
        22,
    )
    assert (await refusal(admission(database), new_task(caller), 5.0))[:2] == (503, "not_started_in_time")
    await admission(database).admit(new_task(caller, priority=Priority.INTERACTIVE), 5.0)


async def test_a_refused_caller_that_obeys_is_accepted_before_newer_ones(
    database: AsyncEngine, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_paces(database, {MODEL: Pace(tokens_per_s=10.0)})
    tasks = [await seed_task(database, caller) for _ in range(4)]
    at_door = admission(database)
    early = replace(new_task(caller, deadline_s=11.0), request='{"messages":["early"]}')
    _, _, after_s = await refusal(at_door, early)
    await note_published(database, [Outgoing(one.id, one.lane) for one in tasks])
    async with autocommit(database) as connection:
        await connection.execute(sa.text("DELETE FROM tasks"))
    import runtime.admission as module

    now = module.time.monotonic() + after_s
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    newer = replace(new_task(caller, deadline_s=2.9), request='{"messages":["newer"]}')
    assert (await refusal(at_door, newer))[1] == "deadline_unreachable"
    await at_door.admit(early)


async def test_a_queued_task_knows_what_it_waits_for(database: AsyncEngine, caller: Caller) -> None:
    first, second = await seed_task(database, caller), await seed_task(database, caller)
    lane = Lane(MODEL, LengthClass.SHORT, Priority.STANDARD)
    found = await look_at(database, lane, second.id)
    assert found is not None
    assert (found.ready, found.loading, found.standing.tasks, found.standing.tokens) == (False, False, 1, 30)
    await worker(database, "starting")
    found = await look_at(database, lane, first.id)
    assert found is not None
    assert (found.ready, found.loading, found.standing.tasks) == (False, True, 0)
    await worker(database, "ready", "long")
    found = await look_at(database, lane, first.id)
    assert found is not None
    assert not found.ready
    await worker(database, "ready")
    await note_published(database, [Outgoing(first.id, first.lane)])
    found = await look_at(database, lane, first.id)
    assert found is not None
    assert (found.ready, found.standing.sent) == (True, True)


async def test_an_estimate_knows_of_a_bound_on_what_the_tenant_runs(
    database: AsyncEngine, caller: Caller
) -> None:
    await write_paces(database, {MODEL: Pace(tokens_per_s=1000.0, run_s=10.0, slots=10)})
    new = await seed_task(database, caller)
    async with autocommit(database) as connection:
        await connection.execute(sa.update(tenants).values(max_running_tasks=2))
    at_door = admission(database)
    estimate = await at_door.estimate(await read(database, new), 4, 120)
    assert estimate.wait_s == 20.0  # two and two, for ten seconds each
    estimate = await at_door.estimate(await read(database, new), 0, 0, at_bound=True)
    assert estimate.wait_s == 5.0
    assert (await refusal(at_door, new_task(caller, deadline_s=4.0)))[1] == "deadline_unreachable"


async def test_an_estimate_counts_own_work_and_the_share_of_others(
    database: AsyncEngine, caller: Caller
) -> None:
    await write_paces(database, {MODEL: Pace(tokens_per_s=10.0)})
    flood = await seed_caller(database, "flood")
    for _ in range(20):
        await seed_task(database, flood)
    new = await seed_task(database, caller)
    estimate = await admission(database).estimate(await read(database, new), 0, 0)
    assert (estimate.position, estimate.tokens_ahead, estimate.wait_s) == (1, 0, 0.0)
    estimate = await admission(database).estimate(await read(database, new), 2, 60)
    assert (estimate.position, estimate.tokens_ahead, estimate.wait_s) == (5, 120, 12.0)
    estimate = await admission(database, order="fifo").estimate(await read(database, new), 0, 0)
    assert (estimate.tokens_ahead, estimate.others_ahead) == (600, True)
