"""How a loop is run: only by the leader, one tick after another, whatever a tick raises."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from control.leader import Leader
from runtime import metrics

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Loop:
    """A duty: `tick` does one round and returns counts of what it did."""

    name: str
    every_s: float
    tick: Callable[[], Awaitable[Mapping[str, int]]]
    rest: Callable[[], None] | None = None  # called when the lead is lost
    pause: Callable[[], Awaitable[None]] | None = None  # until the next round, where the duty knows better
    counted: bool = True  # log what it did; not where it does so all the time


async def run_loop(loop: Loop, leader: Leader) -> None:
    """Tick while leading, until cancelled."""
    led = False
    while True:
        if leader.leading:
            led = True
            await _tick(loop)
        elif led:
            led = False
            if loop.rest is not None:
                loop.rest()
        if loop.pause is not None and leader.leading:
            await loop.pause()
        else:
            await asyncio.sleep(loop.every_s)


async def _tick(loop: Loop) -> None:
    began = time.perf_counter()
    try:
        counts = await loop.tick()
    except Exception as error:  # noqa: BLE001 - the next round tries again
        metrics.CONTROL_TICKS.labels(loop.name, "failed").inc()
        log.error("tick_failed", loop=loop.name, error=f"{type(error).__name__}: {error}")
        return
    metrics.CONTROL_TICKS.labels(loop.name, "ok").inc()
    metrics.CONTROL_TICK_SECONDS.labels(loop.name).observe(time.perf_counter() - began)
    done = {name: count for name, count in counts.items() if count}
    for action, count in done.items():
        metrics.CONTROL_ACTIONS.labels(loop.name, action).inc(count)
    if done and loop.counted:
        log.info("tick", loop=loop.name, **done)
