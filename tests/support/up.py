"""`headrace up` as a process of its own."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cli.stack.folder import DataFolder, RunInfo
from tests.support.waiting import eventually


class Up:
    """One started `headrace up`."""

    def __init__(self, data: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = DataFolder(data)
        self.process = process

    @property
    def run(self) -> RunInfo:
        """What run.json says now."""
        run = self.folder.running()
        assert run is not None
        return run

    async def ready(self, within_s: float) -> RunInfo:
        """Wait until every part serves."""

        def is_ready() -> bool:
            assert self.process.returncode is None, "headrace up ended"
            run = self.folder.running()
            return run is not None and run.ready

        await eventually(is_ready, within_s, "headrace up ready")
        return self.run

    async def end(self, number: signal.Signals) -> int:
        """Signal it and wait for its end."""
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), timeout=60)


async def start_up(data: Path, *options: str) -> Up:
    """Start; the caller waits for `ready` and ends it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli", "up", "--data", str(data), *options, stderr=asyncio.subprocess.STDOUT
    )
    return Up(data, process)


@asynccontextmanager
async def running_up(data: Path, *options: str, within_s: float = 90.0) -> AsyncIterator[Up]:
    """Start, wait until ready, and leave nothing behind."""
    up = await start_up(data, *options)
    try:
        await up.ready(within_s)
        yield up
    finally:
        if up.process.returncode is None:
            await up.end(signal.SIGTERM)
