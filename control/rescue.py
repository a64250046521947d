"""Expired leases: their tasks are queued for the next attempt, or ended."""

from collections.abc import Mapping

import orjson
from sqlalchemy.ext.asyncio import AsyncEngine

from control.announce import announce
from schemas import events
from services.tend import rescue
from storage.streams import EventStreams

_LIMIT = 500


class Rescue:
    """The rescuer's tick."""

    def __init__(self, database: AsyncEngine, streams: EventStreams) -> None:
        self._database, self._streams = database, streams

    async def __call__(self) -> Mapping[str, int]:
        """Rescue what is lost now; the outbox publishes what is queued again."""
        rescued = await rescue(self._database, limit=_LIMIT, count_streamed=self._count_streamed)
        for task_id, state, failure in rescued.ended:
            await announce(self._streams, task_id, state, failure)
        return {"requeued": len(rescued.requeued), "ended": len(rescued.ended)}

    async def _count_streamed(self, task_id: str) -> int:
        deltas = [event for event in await self._streams.read(task_id) if event.type == events.DELTA]
        return int(orjson.loads(deltas[-1].data)["tokens"][1]) if deltas else 0
