"""Keeps named children up: started in order, restarted when they end, stopped in reverse order.

Guarantee: a child's whole process group is killed once the child itself has ended, so that nothing it started
holds a port or memory when its successor comes.

Not supervisord or circus: neither sets a death signal nor awaits one child's readiness before the next start.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cli.stack.process import Program, StackError, log_tail, signal_group, spawn


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long an ended child stays down: doubling, and from the start again after a good run."""

    first_s: float = 0.5
    limit_s: float = 30.0
    reset_after_s: float = 60.0  # a child up for this long had no trouble starting

    def failures(self, before: int, up_s: float) -> int:
        """Failures in a row, counting one after `up_s` of running."""
        return 1 if up_s >= self.reset_after_s else before + 1

    def delay_s(self, failures: int) -> float:
        """Pause before the next start."""
        return min(self.limit_s, self.first_s * 2.0 ** min(failures - 1, 30))


@dataclass(slots=True)
class Running:
    """A child's current process."""

    child: "Child"
    process: subprocess.Popen[bytes]
    exit: "asyncio.Task[int]"
    log_start: int  # where in its log this process began
    started_at: float = field(default_factory=time.monotonic)
    keeper: "asyncio.Task[None] | None" = None


@dataclass(frozen=True, slots=True)
class Child:
    """A program that must stay up."""

    program: Program
    is_ready: Callable[[Running], Awaitable[bool]]
    ready_timeout_s: float = 60.0


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process without a thread, kill what is left of its group, return its exit code.

    Only this reaps a supervised process: nobody may poll or wait beside it.
    """
    exited = asyncio.Event()
    loop = asyncio.get_running_loop()
    descriptor = os.pidfd_open(process.pid)
    loop.add_reader(descriptor, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    # Before it is reaped: until then its number can't belong to anybody else's group.
    signal_group(process.pid, signal.SIGKILL)
    return process.wait()


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class Supervisor:
    """Owns the children. All methods are called on one event loop in the main thread."""

    def __init__(
        self,
        note: Callable[[str], None] = lambda text: None,
        *,
        backoff: Backoff | None = None,
        on_spawn: Callable[[], None] = lambda: None,
    ) -> None:
        self._note = note
        self._backoff = backoff or Backoff()
        self._on_spawn = on_spawn  # called whenever `pids` changed
        self._children: list[Running] = []
        self._hurry = asyncio.Event()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by child name; a child that is down is missing."""
        return {
            running.child.program.name: running.process.pid
            for running in self._children
            if not running.exit.done()
        }

    async def start(self, child: Child) -> None:
        """Start a child and wait until ready; from then on it is kept up.

        Raises: StackError when it ends first or takes too long; the end of its log is in the message.
        """
        running = self._spawn(child)
        self._children.append(running)
        self._on_spawn()
        name, log = child.program.name, child.program.log
        deadline = time.monotonic() + child.ready_timeout_s
        while not await child.is_ready(running):
            if running.exit.done():
                how = how_it_ended(running.exit.result())
                raise StackError(f"{name} {how} before it was ready:\n{log_tail(log)}")
            if time.monotonic() > deadline:
                waited = f"{child.ready_timeout_s:.0f} s"
                raise StackError(f"{name} not ready after {waited}; its log {log}:\n{log_tail(log)}")
            await asyncio.sleep(0.05)
        running.keeper = asyncio.create_task(self._keep_up(running), name=f"keep {name} up")

    async def run(self, program: Program) -> None:
        """Run a program to its end; cancelling kills it. Raises: StackError when it fails."""
        process = _spawned(program)
        exit_ = asyncio.create_task(ended(process))
        try:
            code = await asyncio.shield(exit_)
        except asyncio.CancelledError:
            signal_group(process.pid, signal.SIGKILL)
            await exit_
            raise
        if code != 0:
            raise StackError(f"{program.name} {how_it_ended(code)}:\n{log_tail(program.log)}")

    def hurry(self) -> None:
        """Do not wait for children whose sudden end loses nothing; those are the ones that die with us."""
        self._hurry.set()

    async def stop(self) -> None:
        """Stop all children, last started first; idempotent."""
        while self._children:
            await self._stop_one(self._children.pop())

    def _spawn(self, child: Child) -> Running:
        log_start = _size(child.program.log)
        process = _spawned(child.program)
        return Running(child, process, asyncio.create_task(ended(process)), log_start)

    async def _keep_up(self, running: Running) -> None:
        program = running.child.program
        failures = 0
        while True:
            await asyncio.wait({running.exit})
            up_s = time.monotonic() - running.started_at
            failures = self._backoff.failures(failures, up_s)
            delay_s = self._backoff.delay_s(failures)
            how = how_it_ended(running.exit.result())
            self._note(
                f"{program.name} {how} after {up_s:.1f} s; again in {delay_s:.1f} s; log: {program.log}"
            )
            await asyncio.sleep(delay_s)
            while (fresh := self._spawn_again(running)) is None:
                failures += 1
                await asyncio.sleep(self._backoff.delay_s(failures))
            running.process, running.exit = fresh.process, fresh.exit
            running.log_start, running.started_at = fresh.log_start, fresh.started_at
            self._on_spawn()

    def _spawn_again(self, running: Running) -> Running | None:
        try:
            return self._spawn(running.child)
        except StackError as error:
            self._note(str(error))
            return None

    async def _stop_one(self, running: Running) -> None:
        if running.keeper is not None:
            running.keeper.cancel()
            with suppress(asyncio.CancelledError):
                await running.keeper
        pid, program = running.process.pid, running.child.program
        if not running.exit.done():
            os.kill(pid, program.stop_signal)
        # A store is never hurried: it ends quickly, and tidily only if it is let.
        hurry = asyncio.create_task(self._hurry.wait())
        waits = {running.exit, hurry} if program.death_signal == signal.SIGKILL else {running.exit}
        await asyncio.wait(waits, timeout=program.stop_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not running.exit.done():
            self._note(f"{program.name} did not stop in time: killed")
            signal_group(pid, signal.SIGKILL)
        await running.exit


def _spawned(program: Program) -> subprocess.Popen[bytes]:
    try:
        return spawn(program)
    except (OSError, subprocess.SubprocessError) as error:
        raise StackError(f"{program.name} can't be run: {error}") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
