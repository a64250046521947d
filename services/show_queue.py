"""The queue as an operator watches it."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Lane
from core.pace import Pace
from services.dispatch import SEEN_S
from storage import counters, figures, presence
from storage.autocommit import autocommit
from storage.counters import Backlog
from storage.figures import LaneFigures
from storage.presence import WorkerRow


@dataclass(frozen=True, slots=True)
class QueueView:
    """Lanes with open tasks, what waits in them, and who works."""

    lanes: dict[Lane, LaneFigures]
    backlog: list[Backlog]
    paces: dict[str, Pace]
    workers: list[WorkerRow]


async def show_queue(database: AsyncEngine) -> QueueView:
    """Read the queue once."""
    async with autocommit(database) as connection:
        return QueueView(
            await figures.read_lanes(connection),
            await counters.read_backlog(connection),
            await counters.read_paces(connection),
            [seen.row for seen in await presence.list_workers(connection, within_s=SEEN_S)],
        )
