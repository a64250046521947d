"""Keeping the queue's counts: folds the deltas, measures how fast models are, and writes both down."""

import time

from sqlalchemy.ext.asyncio import AsyncEngine

from control.queue import Queue
from core.pace import Ended, Meter, Pace
from services.dispatch import fold_counts, read_paces, write_paces

_FOLD_EVERY_S = 0.25
_WRITE_EVERY_S = 1.0
_LIMIT = 20_000  # deltas a fold


class Measuring:
    """The leader's meters, by model; a new leader goes on from what the last one wrote."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database
        self._meters: dict[str, Meter] = {}
        self._loaded = False
        self._folded_at = self._written_at = time.monotonic()
        self._written: dict[str, Pace] = {}

    def forget(self) -> None:
        """Begin anew from what is written, when this process leads again."""
        self._loaded = False

    async def paces(self) -> dict[str, Pace]:
        """How fast models are."""
        if not self._loaded:
            self._written = await read_paces(self._database)
            self._meters = {model: Meter(pace) for model, pace in self._written.items()}
            self._folded_at = time.monotonic()
            self._loaded = True
        return {model: meter.pace for model, meter in self._meters.items()}

    async def take(self, queue: Queue) -> None:
        """Fold and measure, if it is time to."""
        now = time.monotonic()
        if now - self._folded_at < _FOLD_EVERY_S:
            return
        seconds, self._folded_at = now - self._folded_at, now
        ended = await fold_counts(self._database, limit=_LIMIT)
        for model in {*self._meters, *ended, *queue.fleets}:
            self._meters.setdefault(model, Meter()).observe(
                seconds, ended.get(model, Ended()), saturated=queue.backed_up(model), slots=queue.slots(model)
            )
        if now - self._written_at >= _WRITE_EVERY_S:
            self._written_at = now
            paces = {model: meter.pace for model, meter in self._meters.items()}
            changed = {model: pace for model, pace in paces.items() if pace != self._written.get(model)}
            if changed:
                await write_paces(self._database, changed)
                self._written |= changed
