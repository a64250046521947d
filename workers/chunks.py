"""Writes stream entries: everything that one engine step produced goes out in one round trip.

An entry appended while nothing is in flight goes out at once, so a first chunk is never held; what comes
while a write is in flight goes with the next. Order is kept through every failure of Redis: nothing is
dropped, and entries wait in memory until it answers again.
"""

import asyncio
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from storage.streams import Append, EventStreams

_RETRY_S = 0.5
_MAX_ENTRIES = 512  # per round trip
log = structlog.get_logger()


class ChunkWriter:
    """The one writer of a worker. `on_refused` hears of entries that a newer attempt fenced off."""

    def __init__(self, streams: EventStreams, on_refused: Callable[[Append], None]) -> None:
        self._streams = streams
        self._on_refused = on_refused
        self._pending: list[Append] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._appended = self._done = 0  # entries ever
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._task = asyncio.create_task(self._write_all())

    def append(self, entry: Append) -> None:
        """Write soon, after everything appended before."""
        self._pending.append(entry)
        self._appended += 1
        self._idle.clear()
        self._wake.set()

    async def written(self, timeout_s: float) -> bool:
        """Wait until what is appended by now is written; False when that took too long."""
        if self._done >= self._appended:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._appended, waiter))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        return True

    async def drain(self, timeout_s: float) -> bool:
        """Wait until everything is written; False when that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _tell_waiters(self) -> None:
        while self._waiters and self._waiters[0][0] <= self._done:
            _, waiter = self._waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)

    async def stop(self) -> None:
        """End, dropping what is not written: a reader finds the task's end in its row."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _write_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                await asyncio.sleep(0)  # requests woken by the same step append before this goes on
                batch = self._pending[:_MAX_ENTRIES]
                try:
                    refused = await self._streams.append(batch)
                except (RedisError, OSError) as error:
                    log.warning("chunks_not_written", waiting=len(self._pending), error=str(error))
                    await asyncio.sleep(_RETRY_S)
                    continue  # what did get through is known when it is sent again
                del self._pending[: len(batch)]
                self._done += len(batch)
                self._tell_waiters()
                for entry in refused:
                    self._on_refused(entry)
            self._idle.set()
