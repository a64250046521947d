"""The operating system's side of a vLLM engine: environment, threads and processes."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from workers.engine_guard import PARENT_DEATH_SIGNAL

KILL_AFTER_S = 3.0


def prepare_environment(on_cpu: bool) -> None:
    """Set what vLLM and its processes read from the environment, where the operator set nothing."""
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",  # vLLM would report to its makers
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads: a fork may deadlock
        PARENT_DEATH_SIGNAL: "1",  # kept by Launcher: the thread that spawns outlives the engine
    }
    if on_cpu:
        cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = cores  # vLLM's choice leaves cores idle
        wanted["TORCHDYNAMO_DISABLE"] = "1"  # hosts without a C++ compiler: one logprobs request would end it
        library = intel_openmp()
        if library is not None:
            wanted["LD_PRELOAD"] = str(library)  # read by what this process starts; it is not loaded here
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


_SEPARATORS = set(" \t\n:")  # of LD_PRELOAD, which knows no quoting


def intel_openmp() -> Path | None:
    """Return Intel's OpenMP, which vllm-cpu brings along on x86: a tenth faster with one stream than torch's own.

    Source: `headrace bench single`; vLLM's installation guide asks for it too.
    """
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    if set(str(library)) & _SEPARATORS:
        return None
    return library if library.exists() else None


class Launcher:
    """Runs blocking engine calls on one thread of its own, which lives as long as the engine.

    The thread matters: the kernel's parent-death signal fires when the thread that spawned a process ends.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm-launcher")
        self._processes: list[psutil.Process] = []

    def launch(self, build: Callable[[], Any]) -> Any:
        """Run `build` and note the processes it started. Called on the launcher's thread."""
        before = {child.pid for child in psutil.Process().children()}
        try:
            return build()
        finally:
            self._processes = [
                child
                for child in psutil.Process().children()
                if child.pid not in before and _is_engine(child)
            ]

    @property
    def thread(self) -> ThreadPoolExecutor:
        """Where blocking calls on the engine are to be made."""
        return self._thread

    def processes(self) -> list[psutil.Process]:
        """The engine's processes that are alive, children of children included."""
        alive: dict[int, psutil.Process] = {}
        for process in self._processes:
            try:
                for member in (process, *process.children(recursive=True)):
                    alive[member.pid] = member
            except psutil.NoSuchProcess:
                continue
        return list(alive.values())

    def end(self, shutdown: Callable[[], None]) -> None:
        """Shut down, then kill what is left. Called on the launcher's thread."""
        family = self.processes()
        try:
            shutdown()
        finally:
            for process in family:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    _kill_later(process)
            psutil.wait_procs(family, timeout=KILL_AFTER_S)
            self._processes = []

    def close(self) -> None:
        """End the thread; the engine must have ended."""
        self._thread.shutdown(wait=False)


def _is_engine(process: psutil.Process) -> bool:
    """multiprocessing's resource tracker is shared by the whole process: not the engine's."""
    try:
        return "resource_tracker" not in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _kill_later(process: psutil.Process) -> None:
    try:
        process.wait(timeout=1.0)
    except psutil.TimeoutExpired:
        process.kill()
    except psutil.NoSuchProcess:
        pass
