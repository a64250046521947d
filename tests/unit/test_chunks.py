"""The worker's writer of stream entries."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from storage.streams import Append, EventStreams
from workers.chunks import ChunkWriter


class Streams:
    """Streams that write when they are let."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.batches: list[list[int]] = []
        self.failures = 0

    async def append(self, entries: Sequence[Append]) -> list[Append]:
        await self.open.wait()
        if self.failures:
            self.failures -= 1
            raise RedisConnectionError
        self.batches.append([entry.sequence for entry in entries])
        return []


@pytest.fixture
async def streams() -> Streams:
    return Streams()


@pytest.fixture
async def writer(streams: Streams) -> AsyncIterator[ChunkWriter]:
    writer = ChunkWriter(cast(EventStreams, streams), lambda _: None)
    yield writer
    await writer.stop()


def entry(sequence: int) -> Append:
    return Append("task_1", 1, sequence, "task.delta", b"{}")


async def test_what_is_appended_together_goes_out_in_one_round_trip(
    streams: Streams, writer: ChunkWriter
) -> None:
    streams.open.set()
    for sequence in (2, 3, 4):
        writer.append(entry(sequence))
    assert await writer.written(5)
    assert streams.batches == [[2, 3, 4]]


async def test_waiting_for_what_is_written_does_not_wait_for_what_comes_later(
    streams: Streams, writer: ChunkWriter
) -> None:
    writer.append(entry(2))
    waiting = asyncio.create_task(writer.written(5))
    await asyncio.sleep(0)
    assert not waiting.done()
    streams.open.set()
    assert await waiting
    assert await writer.written(0)


async def test_a_writer_that_gets_nothing_out_says_so_in_time(writer: ChunkWriter) -> None:
    writer.append(entry(2))
    assert not await writer.written(0.01)


async def test_order_is_kept_through_failures(streams: Streams, writer: ChunkWriter) -> None:
    streams.failures = 1
    streams.open.set()
    writer.append(entry(2))
    writer.append(entry(3))
    assert await writer.written(5)
    assert [sequence for batch in streams.batches for sequence in batch] == [2, 3]
