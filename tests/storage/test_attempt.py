"""An attempt on a real Postgres and a real Valkey, with the engine that makes up its text."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Priority
from core.states import TaskState
from runtime.publishing import PublishingThread
from runtime.settings import Settings
from schemas import events
from services.look_up import look_up
from services.tend import rescue
from storage.records import Caller, NewTask, Task
from storage.streams import EventStreams
from storage.wakes import News
from tests.support.seeds import MODEL, end_lease, seed_task
from tests.support.waiting import eventually, eventually_async
from workers import attempt, courtesy, delivery
from workers import session as sessions
from workers.deterministic import DeterministicEngine
from workers.deterministic_output import make_model
from workers.engine import GenerateRequest, Output
from workers.session import Session

BODY = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"x"}}]}}'


@pytest.fixture
async def session(
    database: AsyncEngine, database_url: str, broker_url: str, streams_url: str, tmp_path: Path
) -> AsyncIterator[Session]:
    """What the attempts of one worker share. Nothing renews leases, nothing is published."""
    settings = Settings.model_validate(
        {
            "database_url": database_url,
            "broker_url": broker_url,
            "streams_url": streams_url,
            "key_pepper": "pepper",
            "model": MODEL,
        }
    )
    make_model(tmp_path / "model")
    engine = DeterministicEngine(MODEL, tmp_path / "model", max_num_seqs=4, step_s=0.05)
    await engine.start()
    redis = Redis.from_url(streams_url)
    told = list[News]()
    publisher = cast(
        PublishingThread, SimpleNamespace(put=lambda outgoing: None, tell=told.append, told=told)
    )
    session = Session(settings, engine, database, EventStreams(redis, "hr", 60), publisher, lambda why: None)
    yield session
    await session.chunks.drain(5)
    await session.chunks.stop()
    await engine.stop()
    await redis.aclose()


async def read(database: AsyncEngine, new: NewTask) -> Task:
    task = await look_up(database, new.caller.tenant_id, new.id)
    assert task is not None
    return task


def told(session: Session) -> list[News]:
    """What the control process was told."""
    return cast(list[News], session._publisher.told)  # type: ignore[attr-defined]


async def deltas(session: Session, task_id: str) -> int:
    """How often text was written to a task's stream."""
    assert await session.chunks.drain(5)
    return sum(event.type == events.DELTA for event in await session.streams.read(task_id))


async def nothing_streamed(task_id: str) -> int:
    return 0


async def test_a_task_runs_to_its_end(session: Session, database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller, request=BODY)
    await attempt.run(session, new.id)
    task = await read(database, new)
    assert task.state is TaskState.COMPLETED
    assert task.usage is not None
    assert task.usage.output_tokens == 20


async def test_the_text_of_batch_work_is_written_at_moments_that_all_of_it_shares(
    session: Session, database: AsyncEngine, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_BATCH_EVERY_S", 1e9)
    batch = await seed_task(database, caller, request=BODY, priority=Priority.BATCH)
    waited_for = await seed_task(database, caller, request=BODY)
    await asyncio.gather(*(attempt.run(session, new.id) for new in (batch, waited_for)))
    assert await deltas(session, batch.id) == 2, "the first and the last are held for nothing"
    assert await deltas(session, waited_for.id) > 2


async def test_batch_work_waits_while_a_person_has_no_token_yet(
    session: Session, database: AsyncEngine, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courtesy, "MOST_S", 3600.0)
    entered = list[str]()
    engine = cast(DeterministicEngine, session.engine)
    generate = engine.generate

    def noting(request: GenerateRequest) -> AsyncIterator[Output]:
        entered.append(request.request_id.partition(".")[0])
        return generate(request)

    monkeypatch.setattr(engine, "generate", noting)
    session.courtesy.begin("somebody")
    batch = await seed_task(database, caller, request=BODY, priority=Priority.BATCH)
    person = await seed_task(database, caller, request=BODY, priority=Priority.INTERACTIVE)
    waits = asyncio.create_task(attempt.run(session, batch.id))
    await eventually(lambda: batch.id in session.running, what="claimed")
    await attempt.run(session, person.id)
    assert entered == [person.id]
    session.courtesy.end("somebody")
    async with asyncio.timeout(20):
        await waits
    assert entered == [person.id, batch.id]


async def test_the_end_of_the_last_batch_work_here_is_told_to_the_control_process(
    session: Session, database: AsyncEngine, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courtesy, "MOST_S", 3600.0)
    monkeypatch.setattr(sessions, "_TELL_EVERY_S", 0.0)
    first, last = [await seed_task(database, caller, request=BODY, priority=Priority.BATCH) for _ in range(2)]
    session.courtesy.begin("somebody")
    runs = [asyncio.create_task(attempt.run(session, new.id)) for new in (first, last)]
    await eventually(lambda: {first.id, last.id} <= set(session.running), what="both claimed")
    session.cancel(first.id)
    session.courtesy.end("somebody")
    await runs[0]
    assert last.id in session.running
    assert told(session) == []
    await runs[1]
    assert told(session) == [News.BATCHES]


async def test_the_end_of_other_work_is_told_to_nobody(
    session: Session, database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller, request=BODY)
    await attempt.run(session, new.id)
    assert told(session) == []


async def test_an_attempt_whose_task_this_worker_claims_again_stops_at_once(
    session: Session, database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller, request=BODY)
    first = asyncio.create_task(attempt.run(session, new.id))
    await eventually(lambda: new.id in session.running and session.running[new.id].productive, what="tokens")
    await end_lease(database, new.id)
    await rescue(database, limit=10, count_streamed=nothing_streamed)
    second = asyncio.create_task(attempt.run(session, new.id))
    await eventually(lambda: session.running[new.id].claim.attempt == 2, what="claimed again")
    engine = cast(DeterministicEngine, session.engine)
    steps = engine.steps
    await first
    assert engine.steps < steps + 5, "the first attempt went on"
    await second
    task = await read(database, new)
    assert (task.state, task.attempt) == (TaskState.COMPLETED, 2)


async def test_a_task_claimed_while_the_worker_drains_goes_to_the_next_attempt_at_once(
    session: Session, database: AsyncEngine, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "cancel_reason", lambda: "drain")
    new = await seed_task(database, caller, request=BODY)
    async with database.begin() as lock:
        await lock.execute(sa.text("SELECT id FROM tasks FOR UPDATE"))
        running = asyncio.create_task(attempt.run(session, new.id))
        await eventually_async(lambda: _waits_for_a_lock(database), what="the claim waits for the row")
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    task = await read(database, new)
    assert (task.state, task.attempt) == (TaskState.QUEUED, 1)


async def test_a_task_that_is_cancelled_while_redis_is_away_ends_all_the_same(
    session: Session, database: AsyncEngine, caller: Caller
) -> None:
    away = Redis.from_url("redis://127.0.0.1:1")
    session.streams = EventStreams(away, "hr", 60)
    new = await seed_task(database, caller, request=BODY)
    running = asyncio.create_task(attempt.run(session, new.id))
    await eventually(lambda: new.id in session.running, what="claimed")
    session.cancel(new.id)
    async with asyncio.timeout(20):
        await running
    assert (await read(database, new)).state is TaskState.CANCELLED
    await away.aclose()


async def _waits_for_a_lock(database: AsyncEngine) -> bool:
    async with database.connect() as connection:
        waiting = await connection.scalar(
            sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        )
    return bool(waiting)
