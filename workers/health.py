"""Watching an engine's health: probes, step times, memory; and what follows for the worker.

A worker whose engine gives a wrong answer takes nothing until a new engine gave a right one.

Units: `*_s` seconds.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from core.health import FATAL, Health, HealthPolicy, Transition
from runtime import metrics
from workers.engine import Engine, EngineDeadError
from workers.figures import Figures
from workers.keeper import EngineKeeper
from workers.probe import Answer, Probe, ProbeFailedError

log = structlog.get_logger()
_LOOK_S = 0.1
_TRIES = 2  # of a probe before an engine is taken for wrong


class WrongEngineError(Exception):
    """A started engine does not say what its model says."""


class HealthWatch:
    """One worker's. `running` says how many attempts run; `on_change`, once set, hears of every transition."""

    def __init__(
        self,
        engine: Engine,
        probe: Probe,
        *,
        running: Callable[[], int],
        window_s: float,
        probe_s: float,
        timeout_s: float,
        drain_s: float,
    ) -> None:
        self._engine, self._probe = engine, probe
        self._running = running
        self.on_change: Callable[[Transition], None] = lambda change: None
        self._window_s, self._probe_s = window_s, probe_s
        self._timeout_s, self._drain_s = timeout_s, drain_s
        self._probed_at = 0.0
        self.policy = HealthPolicy()

    def engine_state(self, state: str, why: str) -> None:
        """Take the keeper's word."""
        if state == "engine_down":
            metrics.ENGINE_REBUILDS.labels(self._engine.info.model).inc()
        self.policy.see_engine(up=state == "ready", why=why)
        self._judge()

    async def prove(self) -> None:
        """Have a started engine give its known answer. Raises: WrongEngineError when it does not."""
        for _ in range(_TRIES):
            if await self._look():
                self._judge()
                return
        self._judge()
        raise WrongEngineError(
            "; ".join(self.policy.reasons.values()) or "the known generation took too long"
        )

    async def keep(self, keeper: EngineKeeper, figures: Figures) -> None:
        """Watch until cancelled; an engine found wrong is built again once its attempts had time to end."""
        while True:
            await asyncio.sleep(self._window_s)
            self.policy.see_steps(self._engine.meter.take_window())
            self.policy.see_memory(sum(figures.rss.values()))
            if time.monotonic() - self._probed_at >= self._probe_s and await self._look() is False:
                await self._look()  # at once again: a verdict needs two
            await self._look_at_idle_kv()
            change = self._judge()
            if change is not None and change.after is Health.UNHEALTHY:
                await self._drained()
                keeper.died("; ".join(change.reasons[sign] for sign in change.reasons if sign in FATAL))

    async def _drained(self) -> None:
        for _ in range(round(self._drain_s / _LOOK_S)):
            if not self._running():
                return
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> bool | None:
        """Run the probe: was it right? None: a busy engine did not come to it."""
        self._probed_at = time.monotonic()
        model, beside = self._engine.info.model, self._running()
        try:
            answer = await self._probe.run(self._timeout_s)
        except TimeoutError:
            metrics.PROBES.labels(model, "late").inc()
            return None  # the keeper tells a busy engine from a stuck one
        except ProbeFailedError as error:
            metrics.PROBES.labels(model, "failed").inc()
            log.warning("probe_failed", error=str(error))
            self.policy.see_no_answer(str(error))
            return False
        self._count(model, answer)
        self.policy.see_probe(right=answer.right, took_s=answer.took_s, running=beside)
        return answer.right

    def _count(self, model: str, answer: Answer) -> None:
        metrics.PROBES.labels(model, "right" if answer.right else "wrong").inc()
        metrics.PROBE_SECONDS.labels(model).observe(answer.took_s)
        if not answer.right:
            log.warning("probe_wrong", answer=answer.text, took_s=round(answer.took_s, 3))

    async def _look_at_idle_kv(self) -> None:
        if self._running():
            return
        try:
            health = await self._engine.check(self._timeout_s)
        except (EngineDeadError, TimeoutError):
            return
        if not health.running and not health.waiting and not self._running():
            self.policy.see_idle_kv(health.kv_cache_usage or 0.0)

    def _judge(self) -> Transition | None:
        change = self.policy.judge()
        if change is None:
            return None
        model = self._engine.info.model
        for sign in change.reasons or ("recovered",):
            metrics.WORKER_TRANSITIONS.labels(model, change.after, sign).inc()
        log.warning("health_changed", before=change.before, after=change.after, reasons=change.reasons)
        self.on_change(change)
        return change
