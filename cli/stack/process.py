"""Child processes that end with their owner: how one is described, spawned and stopped.

The kernel sends a child its `death_signal` when the *thread* that spawned it ends, so children are spawned
from the main thread only.

Source: prctl(2) PR_SET_PDEATHSIG, capabilities(7) "Ambient".
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522

# Loaded here and not in the child: between fork and exec as little as possible may allocate or lock.
_libc = ctypes.CDLL(None, use_errno=True)


class StackError(Exception):
    """A part of the local stack can't be started; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user a child runs as when its owner is root."""

    uid: int
    gid: int
    override_modes: bool  # keeps CAP_DAC_OVERRIDE: its files lie below a folder the user can't enter


@dataclass(frozen=True, slots=True)
class Program:
    """How one child is run and ended."""

    name: str
    argv: Sequence[str | Path]
    log: Path  # stdout and stderr, appended
    cwd: Path
    env: Mapping[str, str] | None = None  # None: the owner's
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 10.0  # then SIGKILL to its process group
    death_signal: signal.Signals = signal.SIGKILL  # sent by the kernel when the owner is gone
    account: Account | None = None


def _prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *padded) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _become(account: Account) -> None:
    if account.override_modes:
        # Not PR_SET_KEEPCAPS: access(2), which initdb asks about its binaries, ignores capabilities of a
        # process whose user isn't root unless this bit is set.
        _prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)
    os.setgroups([])
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    if account.override_modes:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        bit = 1 << _CAP_DAC_OVERRIDE
        data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)  # effective, permitted, inheritable; low, high
        if _libc.capset(header, data) != 0:
            raise OSError(ctypes.get_errno(), "capset")
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE)


def _in_child(account: Account | None, death_signal: signal.Signals) -> Callable[[], None]:
    owner = os.getpid()

    def prepare() -> None:
        if account is not None:
            _become(account)  # before the death signal: a change of user clears it
        _prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != owner:  # it died before the death signal was set
            os._exit(1)

    return prepare


def spawn_options(program: Program) -> dict[str, Any]:
    """Keyword arguments for subprocess.Popen or asyncio.create_subprocess_exec, all but stdout and stderr."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("children are spawned from the main thread: they die with the thread that did it")
    return {
        "cwd": program.cwd,
        "env": None if program.env is None else dict(program.env),
        "stdin": subprocess.DEVNULL,
        # Ctrl-C at the terminal must reach the owner alone: it stops its children in order.
        "start_new_session": True,
        "preexec_fn": _in_child(program.account, program.death_signal),
    }


def spawn(program: Program) -> subprocess.Popen[bytes]:
    """Start a program and return at once."""
    with program.log.open("ab") as log:
        return subprocess.Popen(
            [str(word) for word in program.argv],
            stdout=log,
            stderr=subprocess.STDOUT,
            **spawn_options(program),
        )


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a child's process group; one that is gone is no error."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


class OwnedProcess:
    """One program run without a supervisor, for tests and tools."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while started."""
        return None if self._process is None else self._process.pid

    def start(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Start and wait until ready. Raises: StackError with the end of the log."""
        self._process = spawn(self.program)
        try:
            self._await(self._process, is_ready, timeout_s)
        except BaseException:
            self.stop()
            raise

    def _await(
        self, process: subprocess.Popen[bytes], is_ready: Callable[[], bool], timeout_s: float
    ) -> None:
        name, log = self.program.name, self.program.log
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            code = process.poll()
            if code is not None:
                raise StackError(f"{name} ended with {code}:\n{log_tail(log)}")
            if time.monotonic() > deadline:
                raise StackError(f"{name} not ready after {timeout_s:.0f} s:\n{log_tail(log)}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop gently, then by force; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(self.program.stop_signal)
        try:
            process.wait(self.program.stop_timeout_s)
        except subprocess.TimeoutExpired:
            signal_group(process.pid, signal.SIGKILL)
            process.wait()


def log_tail(path: Path, lines: int = 15) -> str:
    """The end of a log, for an error message."""
    with suppress(FileNotFoundError):
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 8192))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])
    return ""
