"""Loops that give one another work: each looks rarely while there is none, and at once when another did something."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from control.loops import Loop


class Duty(Protocol):
    """A tick that knows whether there is anything to look after."""

    found: bool  # at the last round

    async def __call__(self) -> Mapping[str, int]:
        """Do one round; return counts of what was done."""


class Rounds:
    """Makes the loops. `idle_s`: between two rounds of a loop that found nothing."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._stirs: list[asyncio.Event] = []

    def loop(self, name: str, often_s: float, duty: Duty, *, counted: bool = True) -> Loop:
        """One more. `often_s`: between two rounds while there is something to look after."""
        stir = asyncio.Event()
        self._stirs.append(stir)

        async def tick() -> Mapping[str, int]:
            counts = await duty()
            if any(counts.values()):
                for other in self._stirs:
                    if other is not stir:
                        other.set()
            return counts

        async def pause() -> None:
            try:
                async with asyncio.timeout(often_s if duty.found else self._idle_s):
                    await stir.wait()
            except TimeoutError:
                pass
            stir.clear()

        return Loop(name, often_s, tick, pause=pause, counted=counted)
