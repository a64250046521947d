"""Loopback ports: which is free."""

import errno
import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import TextIO

from cli.stack.process import StackError

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers do: connections of a former server that still linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
        return True


def require_free(port: int, name: str) -> None:
    """Raises: StackError when the port is taken."""
    if not is_free(port):
        raise StackError(f"{name}: port {port} on {LOOPBACK} is in use by another process")


class PortClaims:
    """Ports that a stack is going to use, until `release` or the end of this process.

    A server binds its port seconds after it was found free; until then no other stack of this user takes it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"headrace-ports-{os.getuid()}"
        self._held: list[TextIO] = []

    def take(self, *candidates: int | None) -> int:
        """The first candidate that is free, else any free port."""
        for port in candidates:
            if port and self._claim(port):
                return port
        while True:
            found = free_port()
            if self._claim(found):
                return found

    def require(self, port: int, name: str) -> int:
        """This port. Raises: StackError when it is taken."""
        if not self._claim(port):
            raise StackError(f"{name}: port {port} on {LOOPBACK} is in use by another process")
        return port

    def release(self) -> None:
        """Give them back; idempotent."""
        while self._held:
            self._held.pop().close()

    def _claim(self, port: int) -> bool:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        file = (self._folder / str(port)).open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        if not is_free(port):
            file.close()
            return False
        self._held.append(file)
        return True
