"""Ctrl-C for commands that wait: heard whatever they are doing."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_until_interrupted(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, but Ctrl-C always ends it. Raises: KeyboardInterrupt.

    asyncio cancels the main task at the first Ctrl-C, and a cancellation that comes while that task runs may be
    taken by a library for one of its own time limits: the command went on as if nothing had been said.
    """

    async def outer() -> Result:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return await main

    return asyncio.run(outer())
