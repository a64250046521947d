"""What is past its time is deleted: bodies of tasks and deleted responses, idempotency keys, rows of workers."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from services.tend import (
    forget_deliveries,
    forget_keys,
    forget_worker_events,
    forget_workers,
    purge,
    purge_responses,
)

_LIMIT = 1000
_WORKER_UNSEEN_S = 60.0
_ANSWERED_S = 60.0  # after its end a response that is not kept is told to who waited for it


class Retention:
    """The retention's tick."""

    def __init__(self, database: AsyncEngine, *, retention_s: float, keys_s: float) -> None:
        self._database, self._retention_s, self._keys_s = database, retention_s, keys_s

    async def __call__(self) -> Mapping[str, int]:
        """Delete what is past its time."""
        return {
            "purged": await purge(self._database, retention_s=self._retention_s, limit=_LIMIT),
            "responses": await purge_responses(self._database, grace_s=_ANSWERED_S, limit=_LIMIT),
            "deliveries": await forget_deliveries(self._database, older_s=self._retention_s, limit=_LIMIT),
            "keys": await forget_keys(self._database, older_s=self._keys_s, limit=_LIMIT),
            "worker_events": await forget_worker_events(
                self._database, older_s=self._retention_s, limit=_LIMIT
            ),
            "workers": await forget_workers(self._database, unseen_s=_WORKER_UNSEEN_S),
        }
