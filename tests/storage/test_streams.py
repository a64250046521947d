"""Event streams on a real Valkey: numbering, fencing, and what a follower sees."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from storage.streams import Append, Event, EventStreams, Result

TASK, OTHER = "task_1", "task_2"


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


def ended(sequence: int) -> Append:
    return Append(TASK, 1, sequence, "task.completed", b"{}", result=Result("{}"))


@asynccontextmanager
async def listening(
    redis: Redis, streams: EventStreams, reader: str
) -> AsyncIterator[Callable[[], Awaitable[list[tuple[str, Event]]]]]:
    """Subscribe as a process does; what is given back waits for the next message."""
    pubsub = redis.pubsub()
    await pubsub.subscribe(streams.live_channel(reader))

    async def hear() -> list[tuple[str, Event]]:
        async with asyncio.timeout(5):
            while True:
                message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1)
                if message is not None:
                    return list(streams.parse_live(message["data"]))

    await pubsub.get_message(timeout=5)  # the confirmation
    try:
        yield hear
    finally:
        await pubsub.aclose()


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


async def test_a_process_hears_of_what_it_follows_in_order_and_in_one_message_a_write(
    streams: EventStreams, redis: Redis
) -> None:
    async with listening(redis, streams, "reader") as hear:
        await streams.open(TASK, 1)
        await streams.append([delta(2)])
        await streams.follow("reader", [TASK, OTHER])
        await streams.append([delta(3), Append(OTHER, 1, 2, "task.delta", b'{"n":"x y"}'), delta(4)])
        assert await hear() == [
            (TASK, Event(3, "task.delta", b'{"n":3}')),
            (OTHER, Event(2, "task.delta", b'{"n":"x y"}')),
            (TASK, Event(4, "task.delta", b'{"n":4}')),
        ]
        await streams.unfollow("reader", TASK)
        await streams.append([delta(5), Append(OTHER, 1, 3, "task.delta", b"{}")])
        assert [task for task, _ in await hear()] == [OTHER]


async def test_every_process_that_follows_hears(streams: EventStreams, redis: Redis) -> None:
    async with listening(redis, streams, "one") as first, listening(redis, streams, "two") as second:
        for reader in ("one", "two"):
            await streams.follow(reader, [TASK])
        await streams.append([delta(2)])
        assert await first() == await second() == [(TASK, Event(2, "task.delta", b'{"n":2}'))]


async def test_a_process_that_is_gone_is_forgotten(streams: EventStreams, redis: Redis) -> None:
    await streams.follow("gone", [TASK])
    await streams.append([delta(2)])
    assert await redis.hgetall(streams._fence(TASK)) == {}


async def test_following_a_task_does_not_shorten_the_time_its_fence_is_kept(
    streams: EventStreams, redis: Redis
) -> None:
    await streams.follow("reader", [OTHER])
    assert 0 < await redis.ttl(streams._fence(OTHER)) <= 120
    await streams.open(TASK, 1, keep_s=1000)
    await streams.follow("reader", [TASK])
    assert await redis.ttl(streams._fence(TASK)) > 1000


async def test_scripts_come_back_after_the_server_forgot_them(streams: EventStreams, redis: Redis) -> None:
    await streams.open(TASK, 1)
    await redis.script_flush()
    assert await streams.append([delta(2)]) == []
    await redis.script_flush()
    assert await streams.append([ended(3)]) == []
    assert [event.sequence for event in await streams.read(TASK)] == [2, 3]
    assert await streams.get_result(TASK) == "{}"


async def test_the_result_is_there_before_a_reader_hears_of_the_end(
    streams: EventStreams, redis: Redis
) -> None:
    await streams.open(TASK, 1)
    monitored = list[str]()
    async with redis.monitor() as monitor:
        await streams.append([delta(2), ended(3)])
        while not any("XADD" in command and "completed" in command for command in monitored):
            monitored.append(str((await monitor.next_command())["command"]))
    commands = [command.split()[0] for command in monitored]
    assert "SET" in commands[: commands.index("XADD")]


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
    await streams.append([ended(2)])
    assert await streams.get_result(TASK) == "{}"
    keys = await redis.keys("*")
    assert len(keys) == 3
    assert all([0 < await redis.ttl(key) <= 60 for key in keys])
