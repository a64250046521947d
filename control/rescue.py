"""Expired leases: their tasks are queued for the next attempt, or ended.

What their workers can't tell any more is told here: of every attempt that was lost, and of every end.
"""

import asyncio
from collections.abc import Callable, Mapping

import orjson
import structlog
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from control.announce import announce
from runtime.ended import Endings
from schemas import events
from services.tend import rescue
from storage.streams import EventStreams

_LIMIT = 500
_READ_S = 5.0  # of one stream
log = structlog.get_logger()


class Rescue:
    """The rescuer's tick. Without Redis it ends tasks all the same: readers find the row."""

    def __init__(
        self, database: AsyncEngine, streams: EventStreams, endings: Endings, wake: Callable[[], None]
    ) -> None:
        """`wake` tells the dispatcher that something waits."""
        self._database, self._streams, self._endings, self._wake = database, streams, endings, wake
        self._redis_away = False  # found in this tick: not to be waited for once a task

    async def __call__(self) -> Mapping[str, int]:
        """Rescue what is lost now; the outbox publishes what is queued again."""
        self._redis_away = False
        rescued = await rescue(self._database, limit=_LIMIT, count_streamed=self._count_streamed)
        if rescued.requeued:
            self._wake()
        self._endings.tell_lost(rescued.lost)
        await self._endings.tell([task_id for task_id, _, _ in rescued.ended], rescued.given_up)
        for task_id, state, failure in rescued.ended:
            if not self._redis_away:
                await announce(self._streams, task_id, state, failure)
        return {"requeued": len(rescued.requeued), "ended": len(rescued.ended)}

    async def _count_streamed(self, task_id: str) -> int | None:
        if self._redis_away:
            return None
        try:
            async with asyncio.timeout(_READ_S):
                streamed = await self._streams.read(task_id)
        except (RedisError, TimeoutError) as error:
            log.warning("streamed_not_counted", task_id=task_id, error=f"{type(error).__name__}: {error}")
            self._redis_away = True
            return None
        for event in reversed(streamed):
            if event.type == events.DELTA:
                return int(orjson.loads(event.data)["tokens"][1])
            if event.type == events.RESTARTED:  # what came before is void
                break
        return 0
