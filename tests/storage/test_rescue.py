"""The rescuer's tick on a real Postgres, with streams that are there and that are not."""

import orjson
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from control.rescue import Rescue
from core.states import TaskState
from runtime.ended import Endings
from schemas import events
from services.attempt import Holder, claim
from services.cancel import cancel
from services.look_up import look_up
from storage.records import Caller, NewTask
from storage.streams import Append, EventStreams
from tests.support.seeds import MODEL, end_lease, seed_task


async def lost_while_cancelling(database: AsyncEngine, caller: Caller) -> NewTask:
    new = await seed_task(database, caller)
    await claim(database, [new.id], Holder(worker="w1", model=MODEL, lease_s=30.0))
    await cancel(database, caller.tenant_id, new.id)
    await end_lease(database, new.id)
    return new


async def output_tokens(database: AsyncEngine, new: NewTask) -> int:
    task = await look_up(database, new.caller.tenant_id, new.id)
    assert task is not None
    assert task.state is TaskState.CANCELLED
    assert task.usage is not None
    return task.usage.output_tokens


def delta(new: NewTask, sequence: int, tokens: int) -> Append:
    data = orjson.dumps({"choices": [], "tokens": [10, tokens]})
    return Append(new.id, 1, sequence, events.DELTA, data)


def not_woken() -> None:
    raise AssertionError("nothing is queued again")


async def test_what_was_streamed_since_the_last_restart_is_counted_and_the_end_announced(
    database: AsyncEngine, caller: Caller, streams_url: str
) -> None:
    redis = Redis.from_url(streams_url)
    streams = EventStreams(redis, "hr", 60)
    going_on, restarted = [await lost_while_cancelling(database, caller) for _ in range(2)]
    await streams.append([delta(going_on, 2, 3), delta(going_on, 3, 7), delta(restarted, 2, 5)])
    await streams.append([Append(restarted.id, 1, 3, events.RESTARTED, events.started_data(1))])
    assert await Rescue(database, streams, Endings(database, b"key", None), not_woken)() == {
        "requeued": 0,
        "ended": 2,
    }
    assert await output_tokens(database, going_on) == 7
    assert await output_tokens(database, restarted) == 0
    for new in (going_on, restarted):
        last = await streams.last(new.id)
        assert last is not None
        assert last.type == "task.cancelled"
    await redis.aclose()


async def test_a_lost_task_ends_though_redis_is_away(database: AsyncEngine, caller: Caller) -> None:
    redis = Redis.from_url("redis://127.0.0.1:1")
    new = await lost_while_cancelling(database, caller)
    assert await Rescue(
        database, EventStreams(redis, "hr", 60), Endings(database, b"key", None), not_woken
    )() == {
        "requeued": 0,
        "ended": 1,
    }
    assert await output_tokens(database, new) == 0
    await redis.aclose()
