import asyncio
from collections.abc import Mapping

from control.loops import Loop
from control.rounds import Rounds, Tick

NEVER_S = 3600.0


def doing(count: int) -> Tick:
    """A duty that does so much each time."""

    async def tick() -> Mapping[str, int]:
        return {"done": count}

    return tick


async def pause(loop: Loop) -> None:
    """Wait for a loop's next round; fail when it does not come soon."""
    assert loop.pause is not None
    async with asyncio.timeout(5):
        await loop.pause()


async def test_what_one_loop_did_has_the_others_look_at_once() -> None:
    rounds = Rounds(NEVER_S)
    first, second = rounds.loop("first", NEVER_S, doing(1)), rounds.loop("second", NEVER_S, doing(0))
    await first.tick()
    await pause(second)


async def test_a_loop_does_not_stir_itself_nor_others_by_doing_nothing() -> None:
    rounds = Rounds(NEVER_S)
    busy, idle = rounds.loop("busy", NEVER_S, doing(1)), rounds.loop("idle", NEVER_S, doing(0))
    await idle.tick()
    waiting = [asyncio.create_task(pause(loop)) for loop in (busy, idle)]
    await asyncio.sleep(0)
    await busy.tick()
    await waiting[1]
    assert not waiting[0].done()
    waiting[0].cancel()


async def test_who_stirs_during_a_round_is_heard_after_it() -> None:
    rounds = Rounds(NEVER_S)
    loop = rounds.loop("one", NEVER_S, doing(0))
    rounds.stir()
    await loop.tick()
    await pause(loop)


async def test_a_loop_looks_often_after_it_did_something_or_while_it_is_busy_and_else_rarely() -> None:
    busy = True
    often = Rounds(NEVER_S).loop("often", 0.0, doing(0), busy=lambda: busy)
    await often.tick()
    await pause(often)
    did = Rounds(NEVER_S).loop("did", 0.0, doing(1))
    await did.tick()
    await pause(did)
    busy = False
    rarely = Rounds(0.0).loop("rarely", NEVER_S, doing(0), busy=lambda: busy)
    await rarely.tick()
    await pause(rarely)
