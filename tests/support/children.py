"""Small programs to supervise."""

import sys
from dataclasses import replace
from pathlib import Path

from cli.stack.probes import Probe
from cli.stack.process import Program
from cli.stack.supervisor import Running

_IDLE = """
import signal, sys, time
def stop(number, frame):
    print("stopping", time.monotonic(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
while True:
    signal.pause()
"""

_STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("child", child.pid, flush=True)
print("ready", flush=True)
while True:
    signal.pause()
"""


def script(name: str, folder: Path, source: str) -> Program:
    """A Python program given as text."""
    return Program(name, [sys.executable, "-c", source], folder / f"{name}.log", folder)


def idle(name: str, folder: Path) -> Program:
    """Says ready and waits; on SIGTERM says when it was told to stop."""
    return script(name, folder, _IDLE)


def stubborn(name: str, folder: Path) -> Program:
    """Has a child of its own and ignores SIGTERM."""
    return replace(script(name, folder, _STUBBORN), stop_timeout_s=0.2)


def said(word: str) -> Probe:
    """Ready once the log of this process has the word."""

    async def probe(running: Running) -> bool:
        return word.encode() in running.child.program.log.read_bytes()[running.log_start :]

    return probe
