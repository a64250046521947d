"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path


async def eventually(condition: Callable[[], bool], within_s: float = 10.0, what: str = "condition") -> None:
    """Return as soon as the condition holds. Raises: AssertionError when it never does."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped doesn't."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def eventually_async(
    condition: Callable[[], Awaitable[bool]], within_s: float = 10.0, what: str = "condition"
) -> None:
    """As `eventually`, for a condition that has to be awaited."""
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        await asyncio.sleep(0.02)
