"""Batch work lets people go first in the engine: a prompt read in the same step makes that step longer for both.

A person's first token takes the rest of the step under way and the one that reads the prompt. A batch prompt that goes
to the engine meanwhile is read in one of the two; a moment later it costs nobody anything.
"""

import asyncio
from collections.abc import Hashable

MOST_S = 0.25  # a request of batch work waits at most for this, and for two steps


class Courtesy:
    """Which interactive requests of one worker have no token yet. Lives on the pool's loop."""

    def __init__(self) -> None:
        self._waiting: set[Hashable] = set()
        self._nobody = asyncio.Event()
        self._nobody.set()

    def begin(self, person: Hashable) -> None:
        """A request goes to the engine."""
        self._waiting.add(person)
        self._nobody.clear()

    def end(self, person: Hashable) -> None:
        """It has a token, or none will come. May be said again."""
        self._waiting.discard(person)
        if not self._waiting:
            self._nobody.set()

    async def let_people_go_first(self, step_s: float | None) -> None:
        """Wait until nobody waits, but not for long. `step_s`: what a step takes now; None where it is not known."""
        if self._nobody.is_set():
            return
        try:
            async with asyncio.timeout(MOST_S if step_s is None else min(MOST_S, 2 * step_s)):
                await self._nobody.wait()
        except TimeoutError:
            pass
