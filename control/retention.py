"""What is past its time is deleted: bodies of tasks and deleted responses, idempotency keys, rows of workers."""

from collections.abc import Mapping
from contextlib import suppress

from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from services.tend import (
    forget_deliveries,
    forget_keys,
    forget_worker_events,
    forget_workers,
    purge,
    purge_responses,
)
from storage.streams import EventStreams

_LIMIT = 1000
_WORKER_UNSEEN_S = 60.0
_ANSWERED_S = 60.0  # after its end a response that is not kept is told to who waited for it


class Retention:
    """The retention's tick."""

    def __init__(
        self, database: AsyncEngine, streams: EventStreams, *, retention_s: float, keys_s: float
    ) -> None:
        self._database, self._streams = database, streams
        self._retention_s, self._keys_s = retention_s, keys_s

    async def __call__(self) -> Mapping[str, int]:
        """Delete what is past its time."""
        return {
            "purged": await purge(self._database, retention_s=self._retention_s, limit=_LIMIT),
            "responses": await self._responses(),
            "deliveries": await forget_deliveries(self._database, older_s=self._retention_s, limit=_LIMIT),
            "keys": await forget_keys(self._database, older_s=self._keys_s, limit=_LIMIT),
            "worker_events": await forget_worker_events(
                self._database, older_s=self._retention_s, limit=_LIMIT
            ),
            "workers": await forget_workers(self._database, unseen_s=_WORKER_UNSEEN_S),
        }

    async def _responses(self) -> int:
        purged = await purge_responses(self._database, grace_s=_ANSWERED_S, limit=_LIMIT)
        if purged:
            with suppress(RedisError):  # there they end by themselves after a time
                await self._streams.forget(purged)
        return len(purged)
