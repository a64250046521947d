"""Keeping the engine alive: notices that it died or hangs, and builds it again while the worker takes no work.

A vLLM engine can hang without an error while its own health check passes, so an engine that neither answers
nor steps for a time counts as dead too, and so does one that answers but does not step while requests run.
A busy engine on a loaded machine answers late: a late answer alone means nothing. The attempts that ran on a
dead engine are given back as retriable.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from runtime.garbage import spare_what_is_there
from workers.engine import Engine, EngineDeadError

log = structlog.get_logger()
_BACKOFF_S = (0.0, 1.0, 5.0, 15.0, 30.0, 60.0)


class EngineKeeper:
    """Watches one engine. `on_state` hears "ready" and "engine_down", and why.

    `prove` raises unless a started engine answers as its model does: only then is it ready.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        check_s: float,
        stuck_s: float,
        on_state: Callable[[str, str], None],
        prove: Callable[[], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._prove = prove
        self._check_s, self._stuck_s = check_s, stuck_s
        self._on_state = on_state
        self._died = asyncio.Event()
        self._why = ""
        self._alive_at = time.monotonic()  # when it last answered
        self._working_since: float | None = None  # when a check first found requests running

    def died(self, why: str) -> None:
        """Take an attempt's word that the engine is dead."""
        if not self._died.is_set():
            self._why = why
            self._died.set()

    async def prove(self) -> None:
        """Prove the engine that was just started; one that can't be proven is built again until it can."""
        try:
            await self._prove()
        except Exception as error:  # noqa: BLE001 - as in a rebuild
            self.died(str(error))
            await self._rebuild(tries=1)

    async def keep(self) -> None:
        """Watch and rebuild until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._check_s):
                    await self._died.wait()
            except TimeoutError:
                await self._check()
            if self._died.is_set():
                await self._rebuild()

    async def _check(self) -> None:
        try:
            health = await self._engine.check(self._check_s)
        except EngineDeadError as error:
            self.died(str(error))
            return
        except TimeoutError:
            silent_s = time.monotonic() - self._alive_at
            if silent_s > self._stuck_s:
                self.died(f"no answer for {silent_s:.0f} s")
            return
        self._alive_at = time.monotonic()
        if not health.running:
            self._working_since = None
        elif self._working_since is None:
            self._working_since = self._alive_at
        else:
            silent_s = self._alive_at - max(health.last_step_at, self._working_since)
            if silent_s > self._stuck_s:
                self.died(f"no step for {silent_s:.0f} s while {health.running} requests run")

    async def _rebuild(self, tries: int = 0) -> None:
        log.error("engine_down", why=self._why)
        self._on_state("engine_down", self._why)
        while True:
            await asyncio.sleep(_BACKOFF_S[min(tries, len(_BACKOFF_S) - 1)])
            try:
                await self._engine.stop()  # ends the streams of a hung engine's requests too
                await self._engine.start()
                await self._prove()
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, the next try may succeed
                tries += 1
                log.error("engine_not_rebuilt", tries=tries, error=f"{type(error).__name__}: {error}")
        spare_what_is_there()
        self._died.clear()
        self._alive_at, self._working_since = time.monotonic(), None
        log.info("engine_rebuilt", tries=tries + 1)
        self._on_state("ready", "")
