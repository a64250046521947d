"""A process of a benchmark that answers commands: one JSON line in, one JSON line out.

What is measured runs apart from what measures, so that neither shares an interpreter lock or is charged the
other's CPU time.
"""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from bench.machine import family, standing_still

_PR_SET_PDEATHSIG = 1
_END_S = 15.0


class PeerError(Exception):
    """A process of the benchmark ended or refused a command; its log says why."""


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however that ends. For `preexec_fn`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def log_tail(log: Path, lines: int = 15) -> str:
    """Return the end of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


class Peer:
    """A process that runs `serve`."""

    def __init__(self, module: str, *arguments: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
                preexec_fn=die_with_parent,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, **command: Any) -> Any:
        """Send a command and wait for its answer. Raises: PeerError."""
        try:
            _pipe(self._process.stdin).write(json.dumps(command).encode() + b"\n")
            _pipe(self._process.stdin).flush()
            line = _pipe(self._process.stdout).readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise PeerError(f"{self._process.args!r} ended:\n{log_tail(self._log)}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{answer['error']}\n{log_tail(self._log)}")
        return answer["answer"]

    def paused(self) -> AbstractContextManager[None]:
        """Have it and its engine stand still: an idle engine looks for work many times a second."""
        return standing_still(family(self.pid))

    def close(self) -> None:
        """End it: it reads the end of its input."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def claim_output() -> IO[bytes]:
    """Keep standard output for answers; libraries that print there get standard error. To be called first."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


async def serve(answers: IO[bytes], handle: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    """Answer commands until the input ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        try:
            answer = {"answer": await handle(json.loads(line))}
        except Exception as error:  # noqa: BLE001 - told to who asked
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
