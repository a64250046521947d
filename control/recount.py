"""Messages that the broker lost (emptied, out of memory, a worker killed between pop and record).

A queued task whose message is gone would wait for ever: the broker's counts are held against Postgres's.
"""

from collections.abc import Mapping

from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Lane
from core.recount import missing_messages
from services.publish import count_expected, forget_published
from storage.depths import BrokerDepths

_OLDER_S = 3.0  # a message gets that long from being published to being claimed or seen in its queue


class Recount:
    """The recount's tick."""

    def __init__(self, database: AsyncEngine, depths: BrokerDepths, *, older_s: float = _OLDER_S) -> None:
        self._database, self._depths, self._older_s = database, depths, older_s
        self._suspected: dict[Lane, int] = {}

    async def __call__(self) -> Mapping[str, int]:
        """Have lost messages published again, once two rounds in a row missed them."""
        expected, running = await count_expected(self._database, older_s=self._older_s)
        if not expected:
            self._suspected = {}
            return {}
        try:
            depths = await self._depths.read([lane.queue for lane in expected])
        except RedisError:
            return {}  # the outbox finds the broker away too
        missing = missing_messages(expected, depths.waiting, held=depths.held, running=running)
        # Counts of two stores are not of one moment: only what is missing twice is missing.
        lost = {lane: min(count, self._suspected.get(lane, 0)) for lane, count in missing.items()}
        self._suspected = missing
        lost = {lane: count for lane, count in lost.items() if count}
        if not lost:
            return {}
        self._suspected = {}
        return {"lost_messages": await forget_published(self._database, lost, older_s=self._older_s)}
