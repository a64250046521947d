"""Queued tasks whose deadline passed: ended without using the engine."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from control.announce import announce
from core.failures import Failure
from core.states import TaskState
from runtime.ended import Endings
from services.tend import expire
from storage.streams import EventStreams

_LIMIT = 500


class Expiry:
    """The expiry's tick."""

    def __init__(self, database: AsyncEngine, streams: EventStreams, endings: Endings) -> None:
        self._database, self._streams, self._endings = database, streams, endings

    async def __call__(self) -> Mapping[str, int]:
        """Expire what is late now."""
        ended = await expire(self._database, limit=_LIMIT)
        for task_id in ended:
            await announce(self._streams, task_id, TaskState.EXPIRED, Failure.DEADLINE)
        await self._endings.tell(ended)
        return {"expired": len(ended)}
