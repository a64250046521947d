"""Bodies of old tasks, idempotency keys past their time, and rows of workers that are gone: deleted."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from services.tend import forget_keys, forget_workers, purge

_LIMIT = 1000
_WORKER_UNSEEN_S = 60.0


class Retention:
    """The retention's tick."""

    def __init__(self, database: AsyncEngine, *, retention_s: float, keys_s: float) -> None:
        self._database, self._retention_s, self._keys_s = database, retention_s, keys_s

    async def __call__(self) -> Mapping[str, int]:
        """Delete what is past its time."""
        return {
            "purged": await purge(self._database, retention_s=self._retention_s, limit=_LIMIT),
            "keys": await forget_keys(self._database, older_s=self._keys_s, limit=_LIMIT),
            "workers": await forget_workers(self._database, unseen_s=_WORKER_UNSEEN_S),
        }
