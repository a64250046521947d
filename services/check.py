"""Whether a process does its work, as the database tells it; for health checks."""

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import presence
from storage.autocommit import autocommit

_SERVING = frozenset({"ready", "draining"})  # a draining worker still finishes tasks: not to be ended early


class NotServingError(Exception):
    """The process is not there or does no work; says why."""


async def check_worker(database: AsyncEngine, name: str, *, within_s: float) -> str:
    """The state of a worker that serves and was seen within that time. Raises: NotServingError."""
    async with autocommit(database) as connection:
        state = await presence.seen_worker_state(connection, name, within_s=within_s)
    if state is None:
        raise NotServingError(f"worker {name} was not seen within {within_s:g} s")
    if state not in _SERVING:
        raise NotServingError(f"worker {name} is {state}")
    return state


async def check_leader(database: AsyncEngine, role: str) -> str:
    """Who leads the role now. Raises: NotServingError."""
    async with autocommit(database) as connection:
        holder = await presence.leader_of(connection, role)
    if holder is None:
        raise NotServingError(f"nobody leads {role}")
    return holder
