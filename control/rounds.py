"""Loops that rest until there is something for them: they are stirred by one another, or by the watch.

Asking for each duty apart whether there is anything to do costs more than the duties themselves, so one statement
asks for all of them (`Watch`), and each loop looks by itself only now and then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from control.loops import Loop
from services.tend import what_is_due
from storage.due import Due

_ANYWAY = 10  # ticks: a loop that nobody stirred looks all the same
_AFTER_S = 0.02  # the end of a lease, so that it has passed on the database's clock
Tick = Callable[[], Awaitable[Mapping[str, int]]]


def _never() -> bool:
    return False


class Rounds:
    """Loops of one kind, of which each may give the others work."""

    def __init__(self, idle_s: float) -> None:
        """`idle_s`: between two rounds of a loop that nobody stirs."""
        self._idle_s = idle_s
        self._stirs: list[asyncio.Event] = []

    def stir(self) -> None:
        """There is something to do: have all of them look."""
        for stir in self._stirs:
            stir.set()

    def loop(
        self,
        name: str,
        often_s: float,
        tick: Tick,
        *,
        busy: Callable[[], bool] = _never,
        counted: bool = True,
    ) -> Loop:
        """One more. `often_s`: between two rounds after one that did something, or while it is `busy`."""
        mine, did = asyncio.Event(), False
        self._stirs.append(mine)

        async def round_() -> Mapping[str, int]:
            nonlocal did
            counts = await tick()
            did = any(counts.values())
            if did:
                for stir in self._stirs:
                    if stir is not mine:
                        stir.set()
            return counts

        async def pause() -> None:
            try:
                async with asyncio.timeout(often_s if did or busy() else self._idle_s):
                    await mine.wait()
            except TimeoutError:
                pass
            mine.clear()

        return Loop(name, often_s, round_, pause=pause, counted=counted)


class Watch:
    """The watch's tick: asks what is due and stirs whom it concerns; and its pause."""

    def __init__(self, database: AsyncEngine, tick_s: float) -> None:
        self._database, self._tick_s = database, tick_s
        self._rest_s = tick_s
        self.rounds = {due: Rounds(_ANYWAY * tick_s) for due in Due}

    async def __call__(self) -> Mapping[str, int]:
        """Look once."""
        self._rest_s = self._tick_s
        agenda = await what_is_due(self._database)
        for due in agenda.now:
            self.rounds[due].stir()
        if agenda.lease_s is not None and agenda.lease_s > 0:
            # whose worker is gone is found when its lease ends, and not up to a tick later
            self._rest_s = min(self._tick_s, agenda.lease_s + _AFTER_S)
        return {}

    async def pause(self) -> None:
        """Wait for the next look."""
        await asyncio.sleep(self._rest_s)
