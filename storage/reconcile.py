"""Reads for the reconciliation: tasks beside their entries and prices, engines' time beside attempts'."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.failures import Failure
from core.pricing import FREE, Tariff, Usage
from core.reconcile import Charge

_CHUNK = 5000


@dataclass(frozen=True, slots=True)
class Booked:
    """A task beside its entry."""

    task_id: str
    final: bool
    failure: Failure | None
    usage: Usage
    engine_us: int
    tariff: Tariff | None  # None: the entry names a price that is not there
    charge: Charge | None  # None: there is no entry


_BOOKED = sa.text("""
SELECT t.id, t.finished_at IS NOT NULL AS final, t.failure, coalesce(t.usage_prompt_tokens, 0) AS prompt,
  coalesce(t.usage_cached_tokens, 0) AS cached, coalesce(t.usage_output_tokens, 0) AS output, t.engine_us,
  l.id AS entry, l.tariff_id, l.prompt_tokens, l.cached_tokens, l.output_tokens, l.engine_us AS charged_us,
  l.cost_usd_micros, p.id AS price, p.prompt_usd_micros, p.cached_usd_micros, p.output_usd_micros,
  p.engine_usd_micros
FROM tasks t LEFT JOIN ledger_entries l ON l.task_id = t.id LEFT JOIN tariffs p ON p.id = l.tariff_id
WHERE t.id > :after ORDER BY t.id LIMIT :limit
""")


async def read_booked(connection: AsyncConnection) -> AsyncIterator[Booked]:
    """Yield every task with its entry."""
    after = ""
    while True:
        rows = (await connection.execute(_BOOKED, {"after": after, "limit": _CHUNK})).all()
        for row in rows:
            yield _booked(row)
        if len(rows) < _CHUNK:
            return
        after = rows[-1].id


def _booked(row: Any) -> Booked:
    tariff: Tariff | None = FREE
    if row.tariff_id is not None:
        tariff = None
        if row.price is not None:
            tariff = Tariff(
                row.prompt_usd_micros, row.cached_usd_micros, row.output_usd_micros, row.engine_usd_micros
            )
    charge = None
    if row.entry is not None:
        usage = Usage(row.prompt_tokens, row.cached_tokens, row.output_tokens)
        charge = Charge(usage, row.charged_us, row.cost_usd_micros)
    return Booked(
        row.id,
        row.final,
        Failure(row.failure) if row.failure else None,
        Usage(row.prompt, row.cached, row.output),
        row.engine_us,
        tariff,
        charge,
    )


_ORPHANS = sa.text("""
SELECT coalesce(l.task_id, l.corrects) AS task_id FROM ledger_entries l
WHERE NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = coalesce(l.task_id, l.corrects)) ORDER BY l.id LIMIT :limit
""")


async def find_orphans(connection: AsyncConnection, *, limit: int) -> list[str]:
    """Tasks that entries name and that are not there."""
    return [row.task_id for row in await connection.execute(_ORPHANS, {"limit": limit})]


@dataclass(frozen=True, slots=True)
class WorkerTime:
    """The time of one worker process's engine, and what its attempts were given of it."""

    worker: str
    started_at: datetime
    ended: bool  # in order: all was written down
    quiet: bool  # nothing of it is open, and its time was written after the last of its attempts
    lost: bool  # leases of its attempts ran out: what they used at last nobody wrote down
    busy_us: int
    attempts_us: int


_WORKER_TIME = sa.text("""
WITH process AS (
  SELECT worker, started_at, lead(started_at) OVER (PARTITION BY worker ORDER BY started_at) AS until,
    busy_us, ended, written_at FROM (
    SELECT worker, started_at, CAST(sum(busy_us) AS bigint) AS busy_us, bool_or(ended) AS ended,
      max(written_at) AS written_at FROM engine_time GROUP BY worker, started_at) AS p
)
SELECT p.worker, p.started_at, p.ended, p.busy_us, coalesce(a.used, 0) AS attempts_us, coalesce(a.lost, false) AS lost,
  coalesce(a.last < p.written_at, true) AND NOT EXISTS (
    SELECT 1 FROM tasks t WHERE t.worker = p.worker AND t.lease_expires_at IS NOT NULL) AS quiet
FROM process p LEFT JOIN LATERAL (
  SELECT CAST(sum(engine_us) AS bigint) AS used, bool_or(failure = 'worker_lost') AS lost, max(ended_at) AS last
  FROM attempts a WHERE a.worker = p.worker AND a.claimed_at >= p.started_at
    AND (p.until IS NULL OR a.claimed_at < p.until)) AS a ON true
ORDER BY p.worker, p.started_at
""")


async def read_worker_times(connection: AsyncConnection) -> Sequence[WorkerTime]:
    """Read every worker process's engine time beside that of its attempts."""
    rows = await connection.execute(_WORKER_TIME)
    return [
        WorkerTime(**{name: getattr(row, name) for name in WorkerTime.__dataclass_fields__}) for row in rows
    ]
