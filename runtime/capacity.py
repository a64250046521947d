"""How full the Redis servers are, at most a second old."""

import time
from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from storage.depths import memory_share

_FRESH_S = 1.0


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
