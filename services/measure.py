"""Figures about the whole platform."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Lane, Priority
from core.states import TaskState
from storage import counters, figures, tasks
from storage.autocommit import autocommit
from storage.counters import Backlog
from storage.figures import LaneFigures, OutboxFigures, RecentFigures


async def read_backlog(database: AsyncEngine) -> list[Backlog]:
    """Read what is queued, by lane and tenant."""
    async with autocommit(database) as connection:
        return await counters.read_backlog(connection)


async def measure_lanes(database: AsyncEngine) -> tuple[dict[Lane, LaneFigures], OutboxFigures]:
    """Count what waits and what runs by lane, and what is not published."""
    async with autocommit(database) as connection:
        return await figures.read_lanes(connection), await figures.read_outbox(connection)


async def measure_recent(database: AsyncEngine, *, window_s: float) -> dict[Priority, RecentFigures]:
    """Sum up by priority what ended within that time."""
    async with autocommit(database) as connection:
        return await figures.read_recent(connection, window_s=window_s)


async def final_states(database: AsyncEngine, task_ids: list[str]) -> dict[str, TaskState]:
    """Say which of the tasks are final."""
    async with autocommit(database) as connection:
        return await tasks.final_states(connection, task_ids)


async def ping(database: AsyncEngine) -> None:
    """Prove that Postgres answers. Raises: sqlalchemy.exc.SQLAlchemyError, OSError."""
    async with autocommit(database) as connection:
        await connection.execute(text("SELECT 1"))
