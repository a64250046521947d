"""Figures about the whole platform."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from core.admission import Bound
from core.lanes import Lane, Priority
from core.pace import Pace
from core.states import TaskState
from storage import counters, figures, tasks
from storage.autocommit import autocommit
from storage.counters import Backlog
from storage.figures import LaneFigures, OutboxFigures, RecentFigures


async def read_backlog(database: AsyncEngine) -> list[Backlog]:
    """Read what is queued, by lane and tenant."""
    async with autocommit(database) as connection:
        return await counters.read_backlog(connection)


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """What admission goes by."""

    backlog: list[Backlog]
    paces: dict[str, Pace]  # by model
    weights: dict[str, float]  # of tenants whose weight is not 1
    bounds: dict[str, Bound]  # of tenants that have their own
    running_bounds: dict[str, int]  # of tenants that have one


async def read_queue(database: AsyncEngine) -> QueueCounts:
    """Read what waits, how fast models are, and what tenants may have."""
    async with autocommit(database) as connection:
        return QueueCounts(
            await counters.read_backlog(connection),
            await counters.read_paces(connection),
            await counters.read_weights(connection),
            await counters.read_bounds(connection),
            await counters.read_running_bounds(connection),
        )


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
