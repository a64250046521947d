"""Who is there: worker rows, and the one leader of a role. Both by the database's clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.health import Health
from storage.tables import leaders, worker_events, workers


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
    health: Health = Health.HEALTHY
    output_tokens_per_s: float = 0.0  # since the last row
    reasons: Mapping[str, str] = field(default_factory=dict)
    reserved_slots: int = 0  # for interactive work
    ceilings: str = ""  # on length classes: core.slots.parse_ceilings


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """A worker as others see it."""

    row: WorkerRow
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A change of a worker's health."""

    worker: str
    model: str
    before: Health
    health: Health
    reasons: Mapping[str, str]
    created_at: datetime | None = None  # None: not stored yet


async def put_worker(connection: AsyncConnection, worker: WorkerRow) -> None:
    """Write a worker's state, seen now."""
    changing = {
        "running": worker.running,
        "state": worker.state,
        "health": worker.health.value,
        "output_tokens_per_s": worker.output_tokens_per_s,
        "reasons": dict(worker.reasons),
        "seen_at": sa.func.now(),
    }
    fixed = {
        "model": worker.model,
        "engine": worker.engine,
        "engine_version": worker.engine_version,
        "length_classes": worker.length_classes,
        "max_num_seqs": worker.max_num_seqs,
        "reserved_slots": worker.reserved_slots,
        "ceilings": worker.ceilings,
    }
    await connection.execute(
        insert(workers)
        .values(name=worker.name, **fixed, **changing)
        .on_conflict_do_update(index_elements=["name"], set_=fixed | changing)
    )


async def put_events(connection: AsyncConnection, events: Sequence[WorkerEvent]) -> None:
    """Store changes of health, in order."""
    await connection.execute(
        worker_events.insert(),
        [
            {
                "worker": event.worker,
                "model": event.model,
                "health_before": event.before.value,
                "health": event.health.value,
                "reasons": dict(event.reasons),
            }
            for event in events
        ],
    )


async def list_workers(connection: AsyncConnection, *, within_s: float | None = None) -> list[SeenWorker]:
    """List the workers that are there, or described themselves within that time, by model and name."""
    query = sa.select(workers).order_by(workers.c.model, workers.c.name)
    if within_s is not None:
        query = query.where(
            workers.c.seen_at >= sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, within_s)
        )
    rows = await connection.execute(query)
    return [
        SeenWorker(
            WorkerRow(
                name=row.name,
                model=row.model,
                engine=row.engine,
                engine_version=row.engine_version,
                length_classes=row.length_classes,
                max_num_seqs=row.max_num_seqs,
                running=row.running,
                state=row.state,
                health=Health(row.health),
                output_tokens_per_s=row.output_tokens_per_s,
                reasons=row.reasons,
                reserved_slots=row.reserved_slots,
                ceilings=row.ceilings,
            ),
            row.started_at,
            row.seen_at,
        )
        for row in rows
    ]


async def list_events(connection: AsyncConnection, *, limit: int) -> list[WorkerEvent]:
    """List the newest changes of health of all workers, of those that are gone too; newest first."""
    rows = await connection.execute(sa.select(worker_events).order_by(worker_events.c.id.desc()).limit(limit))
    return [
        WorkerEvent(
            row.worker, row.model, Health(row.health_before), Health(row.health), row.reasons, row.created_at
        )
        for row in rows
    ]


async def delete_old_events(connection: AsyncConnection, *, older_s: float, limit: int) -> int:
    """Delete changes of health from before that time; return how many."""
    ended = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, older_s)
    old = sa.select(worker_events.c.id).where(worker_events.c.created_at < ended).limit(limit)
    return (await connection.execute(sa.delete(worker_events).where(worker_events.c.id.in_(old)))).rowcount


async def healthy_peers(connection: AsyncConnection, model: str, *, but: str, within_s: float) -> list[str]:
    """The length classes of each other worker that serves a model well, as its row has them."""
    limit = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, within_s)
    rows = await connection.scalars(
        sa.select(workers.c.length_classes).where(
            workers.c.model == model,
            workers.c.name != but,
            workers.c.state == "ready",
            workers.c.health == Health.HEALTHY.value,
            workers.c.seen_at >= limit,
        )
    )
    return list(rows)


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
