"""Backlog, in flight and outbox as metrics: read from Postgres by the leader, for the whole platform."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Lane
from runtime import metrics
from services.measure import measure_lanes

_GAUGES = (metrics.BACKLOG, metrics.IN_FLIGHT, metrics.OLDEST_WAIT)


class Figures:
    """The figures' tick. A lane that emptied is shown as empty, not forgotten."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database
        self._known: set[Lane] = set()

    async def __call__(self) -> Mapping[str, int]:
        """Read once."""
        lanes, outbox = await measure_lanes(self._database)
        self._known |= lanes.keys()
        for lane in self._known:
            labels = (lane.model, str(lane.length_class), str(lane.priority))
            found = lanes.get(lane)
            metrics.BACKLOG.labels(*labels).set(found.queued if found else 0)
            metrics.IN_FLIGHT.labels(*labels).set(found.running if found else 0)
            metrics.OLDEST_WAIT.labels(*labels).set(found.oldest_s if found else 0)
        metrics.OUTBOX_TASKS.set(outbox.tasks)
        metrics.OUTBOX_LAG.set(outbox.lag_s)
        return {}

    def rest(self) -> None:
        """Another process leads now: what this one knew is of the past."""
        self._known.clear()
        for gauge in _GAUGES:
            gauge.clear()
        metrics.OUTBOX_TASKS.set(0)
        metrics.OUTBOX_LAG.set(0)
