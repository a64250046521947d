"""Loopback ports: which is free."""

import errno
import socket

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


def preferred(*candidates: int | None) -> int:
    """The first candidate that is free, else any free port."""
    return next((port for port in candidates if port and is_free(port)), 0) or free_port()
