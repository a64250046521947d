"""What admission looks at, at most a second old: the backlog, and how full the Redis servers are."""

import asyncio
import time
from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Lane
from services.measure import read_backlog
from storage.depths import memory_share

_FRESH_S = 1.0


class Backlog:
    """Queued tasks by lane, at most a second old."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database
        self._counts: dict[Lane, int] = {}
        self._at = 0.0
        self._lock = asyncio.Lock()

    async def of(self, lane: Lane) -> int:
        """Return how many tasks wait in a lane."""
        if time.monotonic() - self._at > _FRESH_S:
            async with self._lock:
                if time.monotonic() - self._at > _FRESH_S:
                    counts: dict[Lane, int] = {}
                    for one in await read_backlog(self._database):
                        counts[one.lane] = counts.get(one.lane, 0) + one.tasks
                    self._counts = counts
                    self._at = time.monotonic()
        return self._counts.get(lane, 0)


class MemoryAlarm:
    """Are the Redis servers nearly full? At most a second old.

    A full server (noeviction) loses what a worker popped: nothing more is accepted before it is.
    """

    def __init__(self, servers: Sequence[Redis], share: float) -> None:
        self._servers, self._share = servers, share
        self._full = False
        self._at = 0.0

    async def full(self) -> bool:
        """Say whether one is above the alarm. A server that is away is not full."""
        now = time.monotonic()
        if now - self._at > _FRESH_S:
            self._at = now  # before asking: of many requests one asks
            try:
                shares = [await memory_share(server) for server in self._servers]
            except RedisError:
                shares = []
            self._full = any(share > self._share for share in shares)
        return self._full
