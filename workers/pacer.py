"""Keeps the number of running batch requests where a person's first token comes in time (`core.batch_size`)."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict

import structlog

from core.batch_size import Pressure, batch_size
from core.lanes import Priority
from runtime import metrics
from workers.engine import Engine
from workers.slots import Slots

log = structlog.get_logger()
EVERY_S = 1.0
CALM_S = 30.0  # without an interactive first token: nobody is being kept waiting
SLOW_SHARE = 0.9


class FirstTokens:
    """How long interactive work waited for its first token here, since the size changed last."""

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._waits: deque[float] = deque(maxlen=32)

    def add(self, now: float, seconds: float) -> None:
        """Take one. `now`: monotonic."""
        self._last_at = now
        self._waits.append(seconds)

    def forget(self) -> None:
        """What was waited at another size says nothing about this one."""
        self._waits.clear()

    def is_calm(self, now: float) -> bool:
        """Say whether there was none for a while."""
        return self._last_at is None or now - self._last_at > CALM_S

    @property
    def slow_s(self) -> float | None:
        """The wait that nine of ten did not exceed; None when there is none to tell from."""
        if not self._waits:
            return None
        return sorted(self._waits)[int(SLOW_SHARE * (len(self._waits) - 1))]


class Pacer:
    """One worker's. Lives on the pool's loop."""

    def __init__(
        self, first_tokens: FirstTokens, engine: Engine, slots: Callable[[], Slots | None], *, target_s: float
    ) -> None:
        self._first_tokens, self._engine, self._slots, self._target_s = first_tokens, engine, slots, target_s

    async def keep(self) -> None:
        """Decide again and again until cancelled."""
        while True:
            slots = self._slots()
            if slots is not None:
                self.decide(slots, asyncio.get_running_loop().time())
            await asyncio.sleep(EVERY_S)

    def decide(self, slots: Slots, now: float) -> None:
        """Look once. `now`: monotonic."""
        waits, times = self._first_tokens, self._engine.meter.times
        most = slots.rules.shared
        if not waits.is_calm(now) and waits.slow_s is None:
            return  # nothing was heard since the last change
        pressure = Pressure(
            size=most if slots.batch_size is None else slots.batch_size,
            most=most,
            first_token_s=None if waits.is_calm(now) else waits.slow_s,
            target_s=self._target_s,
            running=slots.running,
            step_s=times.at(slots.running),
            extra_step_s=times.slope_s,
        )
        size = batch_size(pressure)
        if slots.batch_size is None or size != pressure.size:
            log.info("batch_size", to=size, batch_running=slots.held(Priority.BATCH), **asdict(pressure))
            waits.forget()
            slots.set_batch_size(size)
        metrics.BATCH_SIZE.labels(self._engine.info.model).set(size)
