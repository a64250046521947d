"""What requests leave to be written by the way: taken down here, and written many at a time, off their path."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from storage.errors import STORE_ERRORS

log = structlog.get_logger()
_MOST = 10_000  # that are remembered as written


class Aside:
    """Notes of ids and moments (seconds since the epoch), each id written once in `again_s`."""

    def __init__(
        self,
        what: str,
        write: Callable[[dict[str, float]], Awaitable[object]],
        *,
        every_s: float,
        again_s: float,
    ) -> None:
        self._what, self._write, self._every_s, self._again_s = what, write, every_s, again_s
        self._written: dict[str, float] = {}
        self.waiting: dict[str, float] = {}

    def note(self, name: str) -> None:
        """Take an id down, unless it was written lately."""
        now = time.time()
        if now - self._written.get(name, 0.0) >= self._again_s:
            self.waiting[name] = now

    async def write(self) -> None:
        """Write what was taken down. What a store that is away refused is kept for the next time."""
        notes, self.waiting = self.waiting, {}
        if not notes:
            return
        try:
            await self._write(notes)
        except STORE_ERRORS as error:
            self.waiting = notes | self.waiting
            log.warning("not_written", what=self._what, notes=len(notes), error=type(error).__name__)
            return
        if len(self._written) >= _MOST:
            self._written.clear()
        self._written |= notes

    async def run(self) -> None:
        """Write from time to time, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.write()
