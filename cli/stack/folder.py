"""The data folder of a local stack: its lock, its secrets, its ports and the note about a running stack.

Nothing here is needed by a deployment: there, settings come from the environment.
"""

import fcntl
import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from cli.private_file import write_private
from cli.stack.process import StackError

SECRETS = ("postgres-password", "valkey-password", "key-pepper", "flower-password")
_FORMAT = 1  # of run.json


class StackBusyError(StackError):
    """Another process runs a stack on this folder."""


@dataclass(slots=True)
class RunInfo:
    """What run.json tells other commands about a running stack. Its file is as secret as what it holds."""

    pid: int  # of the process that supervises
    api_url: str
    api_key_file: str
    flower_url: str
    flower_user: str
    flower_password_file: str
    model: str
    engine: str
    environment: dict[str, str]  # HEADRACE_* of the children, store URLs and the pepper included
    metrics_urls: dict[str, str] = field(default_factory=dict)  # by process: api, control, worker
    pids: dict[str, int] = field(default_factory=dict)  # by child name; one that is down is missing
    ready: bool = False  # every child was ready once
    pid_times: dict[str, int] = field(default_factory=dict)  # when each began: pids are used again
    began: int = 0  # when the supervisor did
    format: int = _FORMAT
    admin_key_file: str = ""

    @property
    def admin_key(self) -> str:
        """The administrator's key."""
        return Path(self.admin_key_file).read_text().strip()

    @property
    def api_key(self) -> str:
        """The key of tenant `default`."""
        return Path(self.api_key_file).read_text().strip()

    @property
    def flower_auth(self) -> tuple[str, str]:
        """User and password."""
        return self.flower_user, Path(self.flower_password_file).read_text().strip()


class DataFolder:
    """One stack's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.secrets = self.path / "secrets"
        self.logs = self.path / "logs"
        self.api_key = self.path / "api-key"
        self.admin_key = self.path / "admin-key"
        self._run = self.path / "run.json"
        self._ports = self.path / "ports.json"
        self._lock: TextIO | None = None

    def lock(self) -> None:
        """Take the folder for this process until `unlock` or its end. Raises: StackBusyError."""
        for folder in (self.path, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        file = (self.path / "lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            run = self.running()
            by = f" by process {run.pid} (API {run.api_url})" if run else ""
            raise StackBusyError(f"a stack already runs on {self.path}{by}") from error
        self._lock = file

    def unlock(self) -> None:
        """Give the folder back; idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def secret(self, name: str) -> str:
        """A secret's value, made at its first use."""
        file = self.secret_file(name)
        with suppress(FileNotFoundError):
            if value := file.read_text().strip():
                return value
        self.secrets.mkdir(mode=0o700, exist_ok=True)
        value = secrets.token_urlsafe(24)
        write_private(file, value + "\n")
        return value

    def secret_file(self, name: str) -> Path:
        """Where a secret stands."""
        if name not in SECRETS:
            raise ValueError(name)
        return self.secrets / name

    def saved_ports(self) -> dict[str, int]:
        """The ports of the last run, to be used again where free."""
        with suppress(FileNotFoundError, ValueError):
            return {str(name): int(port) for name, port in json.loads(self._ports.read_text()).items()}
        return {}

    def save_ports(self, ports: dict[str, int]) -> None:
        """Remember the ports of this run."""
        write_private(self._ports, json.dumps(ports, indent=1) + "\n")

    def write_run(self, run: RunInfo) -> None:
        """Tell other commands about this stack."""
        run.pid_times = {name: _began(pid) for name, pid in run.pids.items()}
        run.began = _began(run.pid)
        write_private(self._run, json.dumps(asdict(run), indent=1) + "\n")

    def remove_run(self) -> None:
        """The stack ended cleanly."""
        self._run.unlink(missing_ok=True)

    def running(self) -> RunInfo | None:
        """The stack that runs on this folder now, or None; a note left by a crash is not believed."""
        try:
            file = (self.path / "lock").open()
        except FileNotFoundError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                run = self._read_run()
                # a new stack holds the lock for a moment before it removes the note of one that was killed
                return run if run and _began(run.pid) == run.began else None
        return None

    def end_leftovers(self, timeout_s: float = 15.0) -> None:
        """Wait for children whose supervisor was killed: the kernel told them to end. Then kill them."""
        run = self._read_run()
        if run is None:
            return
        left = {name: pid for name, pid in run.pids.items() if _began(pid) == run.pid_times.get(name)}
        deadline = time.monotonic() + timeout_s
        for name, pid in left.items():
            while _began(pid) == run.pid_times[name]:
                if time.monotonic() > deadline:
                    with suppress(ProcessLookupError):
                        os.kill(pid, 9)
                time.sleep(0.02)
        self.remove_run()

    def _read_run(self) -> RunInfo | None:
        with suppress(FileNotFoundError, ValueError, TypeError):
            values: dict[str, Any] = json.loads(self._run.read_text())
            if values.get("format") == _FORMAT:
                return RunInfo(**values)
        return None


def rotate(log: Path) -> None:
    """Begin a new log, keeping the former one."""
    with suppress(FileNotFoundError):
        log.replace(log.with_name(log.name + ".1"))


def _began(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0 when there is none or only its remains."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":
            return int(fields[19])  # starttime; the name before it may hold spaces and brackets
    return 0
