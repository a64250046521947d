"""Where the time of each worker's engine went: one row a worker process and day. Units: microseconds."""

from dataclasses import asdict, dataclass
from datetime import date, datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.money_tables import engine_time


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """What a worker's engine did on a day so far. Written again it replaces what was written."""

    worker: str
    started_at: datetime  # of the worker's process
    day: date  # UTC
    model: str
    idle_us: int
    busy_us: int
    overhead_us: int
    ended: bool  # the process ends, and nothing was left out


async def put_time_spent(connection: AsyncConnection, spent: TimeSpent) -> None:
    """Write a day's time, in place of what was known of it."""
    values = asdict(spent) | {"written_at": sa.func.now()}
    keys = ["worker", "started_at", "day"]
    changing = {name: value for name, value in values.items() if name not in keys}
    await connection.execute(
        insert(engine_time).values(values).on_conflict_do_update(index_elements=keys, set_=changing)
    )
