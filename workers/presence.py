"""A worker's row, written every other second: what it serves, its state and health, and how health changed."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from core.health import Health, HealthPolicy, Transition
from core.lanes import Priority, parse_length_classes
from core.slots import SlotRules, format_ceilings
from runtime import metrics
from runtime.settings import Settings
from services.workers import describe_worker, served_elsewhere
from storage.errors import STORE_ERRORS
from storage.presence import WorkerEvent, WorkerRow
from workers.accounts import now_us
from workers.engine import Engine
from workers.time_sheet import TimeSheet

log = structlog.get_logger()
_EVERY_S = 2.0
_PEER_SEEN_S = 10.0  # another worker counts for so long after it was seen
STATES = ("starting", "ready", "draining", "engine_down")


class Presence:
    """See the module. `shun` gets the priorities that the worker is to take no messages of."""

    def __init__(
        self,
        settings: Settings,
        database: AsyncEngine,
        engine: Engine,
        sheet: TimeSheet,
        policy: HealthPolicy,
        rules: SlotRules,
        *,
        state: Callable[[], str],
        running: Callable[[], int],
        shun: Callable[[frozenset[Priority]], None],
    ) -> None:
        self._settings, self._database = settings, database
        self._engine, self._sheet, self._policy, self._rules = engine, sheet, policy, rules
        self._state, self._running, self._shun = state, running, shun
        self._events: list[WorkerEvent] = []  # not written yet
        self._leaves_people = False
        self._counted = time.monotonic(), engine.meter.output_tokens

    def health_changed(self, change: Transition) -> None:
        """Write this with the next row."""
        name, model = self._settings.worker_name, self._settings.model
        self._events.append(WorkerEvent(name, model, change.before, change.after, change.reasons))

    async def keep(self) -> None:
        """Write until cancelled."""
        while True:
            row, events = self._row(), list(self._events)
            _show(row)
            try:
                spent = self._sheet.read(datetime.now(UTC), now_us())
                await describe_worker(self._database, row, spent, events)
                del self._events[: len(events)]
                await self._leave_people(row)
            except STORE_ERRORS as error:
                log.warning("worker_row_not_written", error=type(error).__name__)
            await asyncio.sleep(_EVERY_S)

    def _rate(self) -> float:
        """Output tokens a second since this was asked last."""
        now, tokens = time.monotonic(), self._engine.meter.output_tokens
        before_at, before = self._counted
        self._counted = now, tokens
        return max(0.0, (tokens - before) / max(now - before_at, 1e-3))

    def _row(self) -> WorkerRow:
        info = self._engine.info
        return WorkerRow(
            name=self._settings.worker_name,
            model=self._settings.model,
            engine=info.kind,
            engine_version=info.version,
            length_classes=",".join(parse_length_classes(self._settings.lanes)),
            max_num_seqs=info.max_num_seqs,
            running=self._running(),
            state=self._state(),
            health=self._policy.health,
            output_tokens_per_s=self._rate(),
            reasons=self._policy.reasons,
            reserved_slots=self._rules.reserved,
            ceilings=format_ceilings(self._rules.ceilings),
        )

    async def _leave_people(self, row: WorkerRow) -> None:
        """A degraded worker leaves people to others, if there are any: slow beats not at all."""
        elsewhere = row.health is Health.DEGRADED and await served_elsewhere(
            self._database, row, within_s=_PEER_SEEN_S
        )
        if elsewhere is not self._leaves_people:
            self._leaves_people = elsewhere
            log.warning("people_left_to_others" if elsewhere else "people_taken_again")
            self._shun(frozenset({Priority.INTERACTIVE}) if elsewhere else frozenset())


def _show(row: WorkerRow) -> None:
    for state in STATES:
        metrics.WORKER_STATE.labels(row.model, state).set(row.state == state)
    for health in Health:
        metrics.WORKER_HEALTH.labels(row.model, health).set(row.health is health)
