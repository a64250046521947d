"""Who is there: worker rows, and the one leader of a role. Both by the database's clock."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import leaders, workers


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as it last described itself."""

    name: str
    model: str
    engine: str
    engine_version: str
    length_classes: str
    max_num_seqs: int
    running: int
    state: str


async def put_worker(connection: AsyncConnection, worker: WorkerRow) -> None:
    """Write a worker's state, seen now."""
    changing = {"running": worker.running, "state": worker.state, "seen_at": sa.func.now()}
    fixed = {
        "model": worker.model,
        "engine": worker.engine,
        "engine_version": worker.engine_version,
        "length_classes": worker.length_classes,
        "max_num_seqs": worker.max_num_seqs,
    }
    await connection.execute(
        insert(workers)
        .values(name=worker.name, **fixed, **changing)
        .on_conflict_do_update(index_elements=["name"], set_=fixed | changing)
    )


async def delete_worker(connection: AsyncConnection, name: str) -> None:
    """Remove a worker that ended in order."""
    await connection.execute(sa.delete(workers).where(workers.c.name == name))


async def delete_unseen_workers(connection: AsyncConnection, *, older_s: float) -> int:
    """Remove the rows of workers not seen for that long."""
    limit = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, older_s)
    return (await connection.execute(sa.delete(workers).where(workers.c.seen_at < limit))).rowcount


async def seen_worker_state(connection: AsyncConnection, name: str, *, within_s: float) -> str | None:
    """The state of a worker that described itself within that time; None for any other."""
    limit = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, within_s)
    state: str | None = await connection.scalar(
        sa.select(workers.c.state).where(workers.c.name == name, workers.c.seen_at >= limit)
    )
    return state


async def leader_of(connection: AsyncConnection, role: str) -> str | None:
    """Who holds the role now; None while no lease lasts."""
    holder: str | None = await connection.scalar(
        sa.select(leaders.c.holder).where(leaders.c.role == role, leaders.c.expires_at >= sa.func.now())
    )
    return holder


_LEAD = sa.text("""
INSERT INTO leaders (role, holder, expires_at)
VALUES (:role, :holder, now() + make_interval(secs => :lease_s))
ON CONFLICT (role) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE leaders.holder = excluded.holder OR leaders.expires_at < now()
RETURNING holder
""")


async def take_lead(connection: AsyncConnection, role: str, holder: str, *, lease_s: float) -> bool:
    """Take or renew the lead of a role; False while another holder's lease lasts."""
    row = await connection.execute(_LEAD, {"role": role, "holder": holder, "lease_s": lease_s})
    return row.one_or_none() is not None


async def leave_lead(connection: AsyncConnection, role: str, holder: str) -> None:
    """Give up the lead so that another need not wait for the lease to end."""
    await connection.execute(sa.delete(leaders).where(leaders.c.role == role, leaders.c.holder == holder))
