import asyncio
from collections.abc import Mapping

from control.rounds import Rounds

NEVER_S = 3600.0


class Work:
    """A duty that does what it is told to."""

    def __init__(self, did: int = 0, *, found: bool = False) -> None:
        self.did, self.found = did, found

    async def __call__(self) -> Mapping[str, int]:
        return {"done": self.did}


async def pause(loop: object) -> None:
    """Wait for a loop's next round; fail when it does not come soon."""
    async with asyncio.timeout(5):
        await loop.pause()  # type: ignore[attr-defined]


async def test_what_one_loop_did_has_the_others_look_at_once() -> None:
    rounds = Rounds(NEVER_S)
    first, second = rounds.loop("first", NEVER_S, Work(1)), rounds.loop("second", NEVER_S, Work())
    await first.tick()
    await pause(second)


async def test_a_loop_does_not_stir_itself_nor_others_by_doing_nothing() -> None:
    rounds = Rounds(NEVER_S)
    busy, idle = rounds.loop("busy", NEVER_S, Work(1)), rounds.loop("idle", NEVER_S, Work(0))
    await idle.tick()
    waiting = [asyncio.create_task(pause(loop)) for loop in (busy, idle)]
    await asyncio.sleep(0)
    await busy.tick()
    await waiting[1]
    assert not waiting[0].done()
    waiting[0].cancel()


async def test_a_loop_with_something_to_look_after_looks_often_and_else_rarely() -> None:
    work = Work(found=True)
    often = Rounds(NEVER_S).loop("often", 0.0, work)
    await pause(often)
    work.found = False
    rarely = Rounds(0.0).loop("rarely", NEVER_S, work)
    await pause(rarely)
