"""Headers that what is done for a request adds to its answer, whatever the answer becomes.

A route need not pass them on: the outermost middleware opens the place and adds what it finds there.
"""

from contextvars import ContextVar

_HEADERS: ContextVar[dict[str, str] | None] = ContextVar("answer_headers", default=None)


def open_headers() -> dict[str, str]:
    """Begin a request: what is added until its answer starts goes out with it."""
    headers: dict[str, str] = {}
    _HEADERS.set(headers)
    return headers


def drop_headers() -> None:
    """Take back what was added so far."""
    current = _HEADERS.get()
    if current is not None:
        current.clear()


def add_headers(headers: dict[str, str]) -> None:
    """Add to the answer of the request that is being worked on; outside of one, nothing happens."""
    current = _HEADERS.get()
    if current is not None:
        current.update(headers)
