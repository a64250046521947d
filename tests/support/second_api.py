"""Another API process on a shared stack: what one accepted, the other has to know."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from cli.stack.ports import free_port
from cli.stack.process import Program, signal_group, spawn
from tests.support.stacks import ROOT, SharedStack
from tests.support.waiting import eventually


@contextmanager
def second_api(stack: SharedStack, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start it; its address and process. `serving` waits until it answers."""
    port = free_port()
    argv = [sys.executable, "-m", "cli", "api", "--port", str(port)]
    process = spawn(Program("second-api", argv, folder / "second-api.log", ROOT, env=stack.environment))
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        signal_group(process.pid, signal.SIGKILL)
        process.wait()


async def serving(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until an API process answers."""

    def answers() -> bool:
        assert process.poll() is None, "the second API ended"
        try:
            return httpx.get(f"{url}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False

    await eventually(answers, 30.0, "the second API serves")
