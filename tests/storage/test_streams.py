"""Event streams on a real Valkey: numbering, fencing, and what a follower sees."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from storage.streams import Append, Event, EventStreams, parse_live

TASK = "task_1"


@pytest.fixture
async def redis(streams_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(streams_url)
    yield client
    await client.aclose()


@pytest.fixture
def streams(redis: Redis) -> EventStreams:
    return EventStreams(redis, "hr", ttl_s=60)


def delta(sequence: int, attempt: int = 1, tokens: tuple[int, ...] = ()) -> Append:
    return Append(TASK, attempt, sequence, "task.delta", b'{"n":%d}' % sequence, tokens)


def numbers(events: list[Event]) -> list[int]:
    return [event.sequence for event in events]


async def test_what_is_appended_is_read_back_whole(streams: EventStreams) -> None:
    await streams.open(TASK, 1)
    assert await streams.append([delta(2, tokens=(1, 70_000)), delta(3)]) == []
    first, second = await streams.read(TASK)
    assert first == Event(2, "task.delta", b'{"n":2}', (1, 70_000))
    assert second.token_ids == ()
    assert numbers(await streams.read(TASK, after=2)) == [3]
    assert await streams.last(TASK) == second
    assert await streams.first_after(TASK, 0) == first


async def test_an_attempt_that_opens_the_stream_learns_what_earlier_ones_wrote(streams: EventStreams) -> None:
    assert await streams.open(TASK, 1) == []
    await streams.append([delta(2), delta(3)])
    earlier = await streams.open(TASK, 2)
    assert earlier is not None
    assert numbers(earlier) == [2, 3]


async def test_a_stale_attempt_can_neither_append_nor_open(streams: EventStreams) -> None:
    await streams.open(TASK, 1)
    await streams.open(TASK, 2)
    stale = delta(2, attempt=1)
    assert await streams.append([stale, delta(2, attempt=2)]) == [stale]
    assert await streams.open(TASK, 1) is None
    assert numbers(await streams.read(TASK)) == [2]


async def test_a_number_is_taken_once(streams: EventStreams) -> None:
    await streams.open(TASK, 1)
    await streams.append([delta(2)])
    other = Append(TASK, 1, 2, "task.delta", b'{"n":"another"}')
    assert await streams.append([other, delta(3)]) == [other]
    assert numbers(await streams.read(TASK)) == [2, 3]


async def test_what_is_sent_again_after_its_answer_was_lost_is_no_sign_of_another_attempt(
    streams: EventStreams,
) -> None:
    assert await streams.open(TASK, 1) == []
    assert await streams.open(TASK, 1) == []
    await streams.append([delta(2), delta(3)])
    assert await streams.append([delta(2), delta(3), delta(4)]) == []
    assert numbers(await streams.read(TASK)) == [2, 3, 4]


async def test_closing_ends_the_stream_and_fences_every_attempt_off(streams: EventStreams) -> None:
    await streams.open(TASK, 1)
    await streams.append([delta(2)])
    await streams.close(TASK, "task.cancelled", b"{}")
    await streams.close(TASK, "task.cancelled", b"{}")
    assert [event.type for event in await streams.read(TASK)] == ["task.delta", "task.cancelled"]
    assert await streams.open(TASK, 7) is None


async def test_appends_are_published_live_in_order(streams: EventStreams, redis: Redis) -> None:
    pubsub = redis.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe(streams.channel(TASK))
    await pubsub.get_message(timeout=1)
    await streams.open(TASK, 1)
    await streams.append([delta(2), delta(3)])
    heard: list[Event] = []
    async with asyncio.timeout(5):
        while len(heard) < 2:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1)
            if message is not None:
                heard.append(parse_live(message["data"]))
    assert numbers(heard) == [2, 3]
    assert heard[0].data == b'{"n":2}'
    await pubsub.aclose()


async def test_scripts_come_back_after_the_server_forgot_them(streams: EventStreams, redis: Redis) -> None:
    await streams.open(TASK, 1)
    await redis.script_flush()
    assert await streams.append([delta(2)]) == []


async def test_the_stream_of_an_open_task_is_kept_as_long_as_the_task_may_go_on(
    streams: EventStreams, redis: Redis
) -> None:
    await streams.open(TASK, 1, keep_s=1000)
    await streams.append([Append(TASK, 1, 2, "task.delta", b"{}", keep_s=1000)])
    assert all([await redis.ttl(key) > 1000 for key in await redis.keys("*")])
    await streams.append([Append(TASK, 1, 3, "task.completed", b"{}")])
    assert all([await redis.ttl(key) <= 60 for key in await redis.keys("*")])


async def test_streams_fences_and_results_do_not_stay_for_ever(streams: EventStreams, redis: Redis) -> None:
    await streams.open(TASK, 1)
    await streams.append([delta(2)])
    await streams.put_result(TASK, "{}")
    assert await streams.get_result(TASK) == "{}"
    keys = await redis.keys("*")
    assert len(keys) == 3
    assert all([0 < await redis.ttl(key) <= 60 for key in keys])
