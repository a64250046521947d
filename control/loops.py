"""How a loop is run: only by the leader, one tick after another, whatever a tick raises."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from control.leader import Leader

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Loop:
    """A duty: `tick` does one round and returns counts of what it did."""

    name: str
    every_s: float
    tick: Callable[[], Awaitable[Mapping[str, int]]]


async def run_loop(loop: Loop, leader: Leader) -> None:
    """Tick while leading, until cancelled."""
    while True:
        if leader.leading:
            try:
                counts = await loop.tick()
            except Exception as error:  # noqa: BLE001 - the next round tries again
                log.error("tick_failed", loop=loop.name, error=f"{type(error).__name__}: {error}")
            else:
                done = {name: count for name, count in counts.items() if count}
                if done:
                    log.info("tick", loop=loop.name, **done)
        await asyncio.sleep(loop.every_s)
