"""What a follower is told while Redis is away."""

import asyncio
import time
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import create_async_engine

from api.live import READ_AGAIN, Follower, LiveEvents, Subscription
from schemas import events
from storage.streams import Append, Event, EventStreams

DELTA = Event(2, events.DELTA, b"{}")
COMPLETED = Event(3, "task.completed", b"{}")


class Store:
    """Streams that are away until they are told what is stored."""

    def __init__(self) -> None:
        self.stored: list[Event] | None = None

    async def read(self, task_id: str, after: int = 0) -> list[Event]:
        if self.stored is None:
            raise RedisError
        return [event for event in self.stored if event.sequence > after]


def subscribed() -> tuple[Subscription, Store, Follower]:
    follower, store = Follower(), Store()
    return Subscription("task_1", follower, cast(EventStreams, store)), store, follower


async def test_a_follower_hears_of_silence_and_of_the_tasks_end_though_the_store_is_away() -> None:
    subscription, _, follower = subscribed()
    async with asyncio.timeout(10):
        heard = subscription.events(1, 0.05)
        began = time.monotonic()
        assert await anext(heard) is None
        assert await anext(heard) is None
        assert time.monotonic() - began >= 0.1
        follower.queue.put_nowait(READ_AGAIN)
        follower.queue.put_nowait(Event(0, "task.completed", b""))  # as the sweep says it
        ends = [event async for event in heard if event is not None]
    assert ends == [Event(2, "task.completed", b"")]


async def test_a_follower_gets_everything_in_order_once_the_store_is_back() -> None:
    subscription, store, follower = subscribed()
    async with asyncio.timeout(10):
        heard = subscription.events(1, 0.05)
        assert await anext(heard) is None
        follower.queue.put_nowait(COMPLETED)  # live, and what came before it was missed
        store.stored = [DELTA, COMPLETED]
        assert [event async for event in heard if event is not None] == [DELTA, COMPLETED]


async def test_a_gap_in_what_is_heard_is_closed_from_the_store() -> None:
    subscription, store, follower = subscribed()
    store.stored = []
    async with asyncio.timeout(10):
        heard = subscription.events(1, 5)
        hearing = asyncio.ensure_future(_collect(heard))
        await asyncio.sleep(0)
        store.stored = [DELTA, COMPLETED]
        follower.queue.put_nowait(COMPLETED)
        assert await hearing == [DELTA, COMPLETED]


async def test_a_message_that_makes_no_sense_does_not_make_the_process_deaf(streams_url: str) -> None:
    redis = Redis.from_url(streams_url)
    streams = EventStreams(redis, "hr", 60)
    database = create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/none")
    live = LiveEvents(redis, streams, database)
    await live.start()
    async with asyncio.timeout(10), live.subscription("task_1") as subscription:
        hearing = asyncio.ensure_future(_collect(subscription.events(1, 5)))
        await redis.publish(streams.live_channel(live._name), b"nonsense")
        await streams.open("task_1", 1)
        await streams.append([Append("task_1", 1, 2, "task.completed", b"{}")])
        assert [event.type for event in await hearing] == ["task.completed"]
    async with asyncio.timeout(10), live.subscription("task_2"):
        pass
    await live.stop()
    await redis.aclose()
    await database.dispose()


async def _collect(heard: Any) -> list[Event]:
    return [event async for event in heard]
