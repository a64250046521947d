"""Tasks that were accepted and never reached the broker: published again."""

import asyncio
from collections.abc import Mapping

from celery import Celery
from sqlalchemy.ext.asyncio import AsyncEngine

from runtime.publishing import wakeup_of
from services.publish import find_unpublished, note_published
from storage.broker import BrokerUnavailableError, Publisher

_LIMIT = 1000


class Outbox:
    """The outbox's tick. `older_s`: who accepted a task publishes it at once, and gets that long to."""

    def __init__(self, database: AsyncEngine, app: Celery, *, older_s: float) -> None:
        self._database, self._older_s = database, older_s
        self._publisher = Publisher(app)

    async def __call__(self) -> Mapping[str, int]:
        """Publish what is unpublished, oldest first."""
        waiting = await find_unpublished(self._database, older_s=self._older_s, limit=_LIMIT)
        if not waiting:
            return {}
        wakeups = [wakeup_of(item) for item in waiting]
        try:
            await asyncio.to_thread(self._publisher.publish_many, wakeups)
        except BrokerUnavailableError:
            return {"unpublished": len(waiting)}
        await note_published(self._database, [item.task_id for item in waiting])
        return {"published": len(waiting)}

    def close(self) -> None:
        """Close the broker connection."""
        self._publisher.close()
