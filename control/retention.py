"""What is past its time is deleted: bodies of tasks and deleted responses, idempotency keys, rows of workers."""

from collections.abc import Mapping

import structlog
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from core.digests import derive_key
from runtime.settings import Settings
from services.tend import forget_deliveries, forget_keys, forget_worker_events, forget_workers, purge
from storage.retention import Periods
from storage.streams import EventStreams

log = structlog.get_logger()
_LIMIT = 1000
_WORKER_UNSEEN_S = 60.0
# After the first delivery, or the end of a response that is not kept: an answer may break off on its way.
_DELIVERED_S = 60.0


class Retention:
    """The retention's tick."""

    def __init__(self, database: AsyncEngine, streams: EventStreams, *, settings: Settings) -> None:
        self._database, self._streams = database, streams
        self._retention_s, self._keys_s = settings.retention_s, settings.idempotency_s
        self._periods = Periods(settings.retention_s, _DELIVERED_S, settings.undelivered_s)
        pepper = settings.key_pepper.get_secret_value().encode()
        self._hash_key = derive_key(pepper, "purged bodies")

    async def __call__(self) -> Mapping[str, int]:
        """Delete what is past its time."""
        purged = await purge(self._database, self._periods, hash_key=self._hash_key, limit=_LIMIT)
        if purged:
            try:
                await self._streams.forget(purged)
            except RedisError as error:
                # they end by themselves
                log.warning("streams_not_forgotten", tasks=len(purged), error=str(error))
        return {
            "purged": len(purged),
            "deliveries": await forget_deliveries(self._database, older_s=self._retention_s, limit=_LIMIT),
            "keys": await forget_keys(self._database, older_s=self._keys_s, limit=_LIMIT),
            "worker_events": await forget_worker_events(
                self._database, older_s=self._retention_s, limit=_LIMIT
            ),
            "workers": await forget_workers(self._database, unseen_s=_WORKER_UNSEEN_S),
        }
