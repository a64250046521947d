"""The dispatcher on real stores: what it sends, what it holds back, and that nothing is left."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from control.dispatch import Dispatch
from control.queue import BUSY_S, CALM_S, Queue
from core.fleet import BURST
from core.lanes import Lane, LengthClass, Priority
from core.pace import Pace
from core.states import TaskState
from runtime.ended import Endings
from runtime.publishing import PublishingThread
from services.attempt import Holder, claim, claim_bounded
from services.dispatch import lift_shares, look, look_around, write_paces
from services.look_up import look_up
from services.submit import submit
from services.workers import describe_worker
from storage.autocommit import autocommit
from storage.broker import BrokerUnavailableError, Publisher, Wakeup, make_celery
from storage.credit import Ceilings, Credit
from storage.outbox import Outgoing
from storage.presence import WorkerRow
from storage.records import Caller, NewTask
from storage.streams import EventStreams
from storage.tables import tasks, tenants
from storage.wakes import News, channel, heard
from tests.support.seeds import MODEL, new_task, seed_caller
from tests.support.waiting import eventually_async

SLOTS = 4


class Recorder:
    """A broker that takes everything, or nothing."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.away = False

    def publish_many(self, wakeups: Any) -> int:
        if self.away:
            raise BrokerUnavailableError("away")
        self.ids += [wakeup.task_id for wakeup in wakeups]
        return len(self.ids)


@pytest.fixture
async def redis(broker_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(broker_url)
    yield client
    await client.aclose()


async def there_is_a_worker(
    database: AsyncEngine, slots: int = SLOTS, classes: str = "short,medium,long"
) -> None:
    await describe_worker(database, WorkerRow("w1", MODEL, "deterministic", "1", classes, slots, 0, "ready"))


def dispatcher(database: AsyncEngine, redis: Redis, sent: Any, order: str = "fair") -> Dispatch:
    streams = EventStreams(redis, "hr", 60.0)
    ceilings, endings = Ceilings(redis, "hr"), Endings(database, b"key", None)
    return Dispatch(
        database, sent, ceilings, streams, endings, order=order, idle_s=1.0, older_s=-1.0, around_s=0.0
    )


async def queued(database: AsyncEngine, caller: Caller, tokens: int = 30, **options: Any) -> NewTask:
    new = replace(new_task(caller, **options), max_output_tokens=tokens - 10)
    await submit(database, new)
    return new


async def test_no_more_is_sent_than_can_start_soon(
    database: AsyncEngine, caller: Caller, redis: Redis
) -> None:
    await there_is_a_worker(database)
    new = [await queued(database, caller) for _ in range(20)]
    sent = Recorder()
    dispatch = dispatcher(database, redis, sent)
    await dispatch()
    assert sent.ids == [one.id for one in new[: SLOTS + 1]]
    await dispatch()
    assert len(sent.ids) == SLOTS + 1  # they are on their way: no slot became free
    await claim(database, [sent.ids[0]], Holder("w1", MODEL, 30.0))
    await dispatch()
    assert len(sent.ids) == SLOTS + 1


async def test_it_rests_longer_only_while_batch_work_alone_waits_and_enough_lies_ahead(
    database: AsyncEngine, caller: Caller, redis: Redis
) -> None:
    async def rest_s() -> float | None:
        return Queue(await look(database, await look_around(database), older_s=-1.0), {}, fifo=False).rest_s()

    await there_is_a_worker(database, slots=16)
    assert await rest_s() is None
    for _ in range(20):
        await queued(database, caller, priority=Priority.BATCH)
    assert await rest_s() == BUSY_S  # the slots are empty
    sent = Recorder()
    dispatch = dispatcher(database, redis, sent)
    await dispatch()
    assert len(sent.ids) == 16 + 16 // BURST
    calm_s = await rest_s()
    assert calm_s is not None and calm_s > BUSY_S
    await queued(database, caller, priority=Priority.STANDARD)
    assert await rest_s() == BUSY_S
    await dispatch()
    assert len(sent.ids) == 16 + 16 // BURST + 1  # what lies ahead for files is overtaken
    assert await rest_s() == calm_s


async def test_what_was_heard_in_a_short_rest_is_still_heard_in_the_next_long_one(
    database: AsyncEngine, caller: Caller, redis: Redis
) -> None:
    await there_is_a_worker(database, slots=1)
    dispatch = dispatcher(database, redis, Recorder())
    for _ in range(4):
        await queued(database, caller, priority=Priority.BATCH)
    await dispatch()
    dispatch.wake()  # by a task so young that the next look does not see it
    await dispatch.pause()
    await dispatch()  # only batch work is seen, and enough of it lies ahead: it would rest
    began = asyncio.get_running_loop().time()
    await dispatch.pause()
    assert asyncio.get_running_loop().time() - began < CALM_S - BUSY_S


async def test_a_light_tenant_goes_before_a_flood(
    database: AsyncEngine, caller: Caller, redis: Redis
) -> None:
    await there_is_a_worker(database)
    flood = [await queued(database, caller) for _ in range(20)]
    light = await queued(database, await seed_caller(database, "light"))
    sent = Recorder()
    await dispatcher(database, redis, sent)()
    assert set(sent.ids) == {light.id, *(one.id for one in flood[:SLOTS])}
    fifo = Recorder()
    for one in sent.ids:
        async with autocommit(database) as connection:
            await connection.execute(sa.update(tasks).values(published_at=None).where(tasks.c.id == one))
    await dispatcher(database, redis, fifo, "fifo")()
    assert fifo.ids == [one.id for one in flood[: SLOTS + 1]]


async def test_who_was_served_alone_is_not_made_to_wait_until_newcomers_are_level(
    database: AsyncEngine, caller: Caller, redis: Redis
) -> None:
    await there_is_a_worker(database)
    await lift_shares(database, MODEL, {caller.tenant_id: 10_000.0})
    sent = Recorder()
    dispatch = dispatcher(database, redis, sent)
    first = await queued(database, caller)  # published at once, by who accepted it
    await claim(database, [first.id], Holder("w1", MODEL, 30.0))
    await dispatch()
    flood = await seed_caller(database, "flood")
    for _ in range(20):
        await queued(database, flood)
    await dispatch()
    light = await queued(database, caller)
    async with autocommit(database) as connection:  # the flood's are on their way and end
        await connection.execute(
            sa.text("DELETE FROM tasks WHERE published_at IS NOT NULL AND state = 'queued'")
        )
    await dispatch()
    assert light.id in sent.ids


async def test_what_no_worker_takes_waits_in_postgres(
    database: AsyncEngine, caller: Caller, redis: Redis
) -> None:
    await there_is_a_worker(database, classes="medium,long")
    short = await queued(database, caller)
    sent = Recorder()
    dispatch = dispatcher(database, redis, sent)
    await dispatch()
    assert sent.ids == []
    await there_is_a_worker(database, classes="short")
    await dispatch()
    assert sent.ids == [short.id]


async def bound(database: AsyncEngine, caller: Caller, most: int | None) -> None:
    async with autocommit(database) as connection:
        of_tenant = sa.update(tenants).where(tenants.c.id == caller.tenant_id)
        await connection.execute(of_tenant.values(max_running_tasks=most))


@pytest.mark.parametrize("order", ["fair", "fifo"])
async def test_a_tenant_gets_no_more_places_than_it_may_have_and_leaves_the_others_to_others(
    database: AsyncEngine, caller: Caller, redis: Redis, order: str
) -> None:
    await there_is_a_worker(database)
    await bound(database, caller, 2)
    first = [await queued(database, caller) for _ in range(20)]
    others = await seed_caller(database, "others")
    second = [await queued(database, others) for _ in range(20)]
    sent = Recorder()
    dispatch = dispatcher(database, redis, sent, order)
    for _ in range(2):  # the oldest are all one tenant's
        await dispatch()
    expected = {one.id for one in (*first[:2], *second[: SLOTS - 1])}
    assert set(sent.ids) == expected
    for claiming in (claim, claim_bounded):
        await claiming(database, list(expected), Holder("w1", MODEL, 30.0))
    await dispatch()
    assert set(sent.ids) == expected
    await bound(database, caller, 3)
    async with autocommit(database) as connection:
        await connection.execute(sa.delete(tasks).where(tasks.c.id == second[0].id))
    await dispatch()
    assert set(sent.ids) == expected | {first[2].id}


async def test_what_waits_for_its_tenants_place_keeps_nobody_else_from_publishing_at_once(
    database: AsyncEngine, caller: Caller, redis: Redis, broker_url: str
) -> None:
    await there_is_a_worker(database)
    await bound(database, caller, 1)
    running = await queued(database, caller)
    await claim_bounded(database, [running.id], Holder("w1", MODEL, 30.0))
    await queued(database, caller)
    sent = Recorder()
    await dispatcher(database, redis, sent)()
    assert sent.ids == []
    lane = Lane(MODEL, LengthClass.SHORT, Priority.STANDARD)
    credit = Credit(BlockingRedis.from_url(broker_url), "hr")
    free, held = credit.split(
        [Outgoing("own", lane, tenant_id=caller.tenant_id), Outgoing("other", lane, tenant_id="other")]
    )
    assert ([one.task_id for one in free], [one.task_id for one in held]) == (["other"], ["own"])
    credit.close()
    await bound(database, caller, None)
    await dispatcher(database, redis, sent)()
    assert len(sent.ids) == 1
    again = Credit(BlockingRedis.from_url(broker_url), "hr")
    assert (
        again.split(
            [
                Outgoing(
                    "own",
                    Lane("no/ceiling", LengthClass.SHORT, Priority.STANDARD),
                    tenant_id=caller.tenant_id,
                )
            ]
        )[1]
        == []
    )
    again.close()


async def test_a_task_stays_in_the_outbox_until_the_broker_has_it(
    database: AsyncEngine, caller: Caller, redis: Redis
) -> None:
    await there_is_a_worker(database)
    new = await queued(database, caller)
    sent = Recorder()
    sent.away = True
    dispatch = dispatcher(database, redis, sent)
    await dispatch()
    sent.away = False
    await dispatch()
    await dispatch()
    assert sent.ids == [new.id]


async def test_what_cannot_meet_its_deadline_expires_without_being_sent(
    database: AsyncEngine, caller: Caller, redis: Redis
) -> None:
    await there_is_a_worker(database)
    await write_paces(database, {MODEL: Pace(output_token_s=1.0, output_share=1.0)})
    late = await queued(database, caller, tokens=110, deadline_s=50.0)
    sent = Recorder()
    assert (await dispatcher(database, redis, sent)())["late"] == 1
    task = await look_up(database, caller.tenant_id, late.id)
    assert task is not None
    assert (task.state, sent.ids) == (TaskState.EXPIRED, [])


async def test_without_a_backlog_who_accepts_a_task_publishes_it_and_with_one_it_waits(
    database: AsyncEngine, caller: Caller, redis: Redis, broker_url: str
) -> None:
    await there_is_a_worker(database)
    sent = Recorder()
    dispatch = dispatcher(database, redis, sent)
    await dispatch()
    credit = Credit(BlockingRedis.from_url(broker_url), "hr")

    def outgoing(count: int, priority: Priority = Priority.STANDARD) -> list[Outgoing]:
        return [Outgoing(f"task_{n}", Lane(MODEL, LengthClass.SHORT, priority)) for n in range(count)]

    free, held = credit.split(outgoing(9))
    assert (len(free), len(held)) == (SLOTS + 1, 9 - SLOTS - 1)
    for _ in range(20):
        await queued(database, caller, priority=Priority.BATCH)
    await dispatch()
    again = Credit(BlockingRedis.from_url(broker_url), "hr")
    assert len(again.split(outgoing(3, Priority.BATCH))[1]) == 3
    assert len(again.split(outgoing(3, Priority.INTERACTIVE))[0]) == 3  # nobody like it waits
    credit.close()
    again.close()


async def test_messages_in_the_queue_and_at_workers_use_up_the_credit(
    database: AsyncEngine, caller: Caller, redis: Redis, broker_url: str
) -> None:
    await there_is_a_worker(database)
    await dispatcher(database, redis, Recorder())()
    lane = Lane(MODEL, LengthClass.SHORT, Priority.STANDARD)
    publisher = Publisher(make_celery(broker_url))
    publisher.publish_many([Wakeup(lane.queue, "task_1"), Wakeup(lane.queue, "task_2")])
    await redis.hset("hr:q:unacked", "tag", "message")
    credit = Credit(BlockingRedis.from_url(broker_url), "hr")
    free, _ = credit.split([Outgoing(f"task_{n}", lane) for n in range(9)])
    assert len(free) == SLOTS + 1 - 3
    credit.close()
    publisher.close()


async def test_without_a_control_process_everything_is_published(broker_url: str) -> None:
    credit = Credit(BlockingRedis.from_url(broker_url), "hr")
    lane = Lane(MODEL, LengthClass.SHORT, Priority.BATCH)
    free, held = credit.split([Outgoing(f"task_{n}", lane) for n in range(100)])
    assert (len(free), held) == (100, [])
    credit.close()


async def test_the_dispatcher_is_woken_by_what_is_held_back(
    database: AsyncEngine, caller: Caller, redis: Redis, broker_url: str
) -> None:
    ceilings = Ceilings(redis, "hr")
    await ceilings.put({MODEL: dict.fromkeys(Priority, 0)})
    wakes = heard(redis, "hr")
    thread = PublishingThread(
        make_celery(broker_url), database, Credit(BlockingRedis.from_url(broker_url), "hr")
    )
    thread.start()
    waiting = asyncio.ensure_future(anext(wakes))

    async def subscribed() -> bool:
        return bool((await redis.pubsub_numsub(channel("hr")))[0][1])

    await eventually_async(subscribed, what="the channel is heard")
    lane = Lane(MODEL, LengthClass.SHORT, Priority.STANDARD)
    thread.put(Outgoing("task_1", lane))
    assert await asyncio.wait_for(waiting, 5) is News.TASKS
    thread.tell(News.BATCHES)
    assert await asyncio.wait_for(anext(wakes), 5) is News.BATCHES
    assert await redis.llen(f"hr:q:{lane.queue}") == 0
    await thread.stop()
    await wakes.aclose()
