"""Why is a task waiting?"""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import Lane, parse_length_classes
from services.dispatch import SEEN_S
from storage import presence, standing
from storage.autocommit import autocommit
from storage.standing import Standing


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where a queued task stands, and who would run it."""

    standing: Standing
    ready: bool  # a worker takes its lane now
    loading: bool  # one would, once its engine is ready


async def look_at(database: AsyncEngine, lane: Lane, task_id: str) -> Circumstances | None:
    """Read a task's circumstances; None when it is queued no more."""
    async with autocommit(database) as connection:
        found = await standing.read_standing(connection, task_id)
        if found is None:
            return None
        workers = [seen.row for seen in await presence.list_workers(connection, within_s=SEEN_S)]
    able = [
        worker
        for worker in workers
        if worker.model == lane.model and lane.length_class in parse_length_classes(worker.length_classes)
    ]
    return Circumstances(
        found,
        ready=any(worker.state == "ready" for worker in able),
        loading=any(worker.state in ("starting", "engine_down") for worker in able),
    )
