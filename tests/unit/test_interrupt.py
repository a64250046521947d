"""Ctrl-C ends a command, whatever becomes of cancellations."""

import asyncio
import os
import signal
from contextlib import suppress

import pytest

from cli.interrupt import run_until_interrupted


async def interrupted_while_running() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    with suppress(asyncio.CancelledError):  # as a library does that takes it for a time limit of its own
        await asyncio.sleep(0)
    return "went on"


def test_an_interrupt_is_heard_where_a_cancellation_is_not() -> None:
    assert asyncio.run(interrupted_while_running()) == "went on"  # what is guarded against
    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted(interrupted_while_running())


def test_what_was_opened_is_closed_and_the_value_returned() -> None:
    closed = []

    async def waiting() -> None:
        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted(waiting())
    assert closed

    async def answer() -> int:
        return 4

    assert run_until_interrupted(answer()) == 4
