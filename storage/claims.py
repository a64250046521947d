"""The claim: queued tasks become attempts of a worker, where their tenants may still run them.

Rows are locked in id order, tenants before the tasks of theirs: no two statements can deadlock.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.lanes import Lane, LengthClass, Priority
from storage.ledger import PRICES, USED, used_of
from storage.records import Claim
from storage.tariffs import tariff_of

_IDS = sa.bindparam("ids", type_=sa.ARRAY(sa.Text))

# `granted`: those of `locked` that may run
_CLAIM = """
WITH locked AS MATERIALIZED (
  SELECT t.id FROM tasks t JOIN tenants n ON n.id = t.tenant_id
  WHERE t.id = ANY(:ids) AND t.state = 'queued' AND t.model = :model AND t.deadline_at > now() AND {which}
  ORDER BY t.id FOR UPDATE OF t
), granted AS (
  SELECT t.id, n.id AS tenant_id, n.class, n.max_running_tasks FROM locked JOIN tasks t USING (id)
  JOIN tenants n ON n.id = t.tenant_id AND n.disabled_at IS NULL
  JOIN grants g ON g.tenant_id = t.tenant_id AND g.model = t.model
){placed}
UPDATE tasks t SET
  state = 'in_progress', attempt = attempt + 1, worker = :worker, claimed_at = now(), exposed = failures = 0,
  started_at = coalesce(started_at, now()), lease_expires_at = now() + make_interval(secs => :lease_s)
FROM {source} g, task_payloads p
WHERE t.id = g.id AND p.task_id = t.id
RETURNING t.id, t.tenant_id, t.key_id, t.attempt, t.url, p.request, t.max_output_tokens, t.prompt_tokens,
  t.reserved_tokens, t.created_at, t.priority, t.failures, t.preemptions, t.length_class, t.traceparent,
  t.turned_back, g.class AS tenant_class,
  CASE WHEN t.traceparent IS NOT NULL AND t.priority = 'batch'
    THEN (SELECT i.batch_id FROM batch_items i WHERE i.task_id = t.id) END AS batch_id, {used},
  CAST(extract(epoch FROM t.deadline_at - now()) AS float8) AS remaining_s,
  CAST(extract(epoch FROM now() - t.created_at) AS float8) AS waited_s,
  {prices}
"""
_CLAIM_UNBOUNDED = sa.text(
    _CLAIM.format(which="n.max_running_tasks IS NULL", placed="", source="granted", used=USED, prices=PRICES)
).bindparams(_IDS)
# What finds no place goes back to the outbox: the dispatcher sends it once its tenant has one.
_PLACED = """, placed AS (
  SELECT id, class, row_number() OVER (PARTITION BY tenant_id ORDER BY id) <= max_running_tasks - (
    SELECT count(*) FROM tasks r WHERE r.tenant_id = granted.tenant_id AND r.state IN ('in_progress', 'cancelling')
  ) AS has_place FROM granted
), taken AS (
  SELECT id, class FROM placed WHERE has_place
), put_back AS (
  UPDATE tasks t SET published_at = NULL, turned_back = turned_back + 1 FROM placed
  WHERE t.id = placed.id AND NOT placed.has_place
)"""
_CLAIM_BOUNDED = sa.text(
    _CLAIM.format(which="n.id = ANY(:tenants)", placed=_PLACED, source="taken", used=USED, prices=PRICES)
).bindparams(_IDS, sa.bindparam("tenants", type_=sa.ARRAY(sa.Text)))
_LOCK_BOUNDED = sa.text("""
SELECT id FROM tenants WHERE max_running_tasks IS NOT NULL
  AND id IN (SELECT tenant_id FROM tasks WHERE id = ANY(:ids) AND state = 'queued')
ORDER BY id FOR NO KEY UPDATE
""").bindparams(_IDS)


async def claim_unbounded(
    connection: AsyncConnection, task_ids: Sequence[str], *, model: str, worker: str, lease_s: float
) -> list[Claim]:
    """Claim those of the tasks that are queued, in time and granted; the others are left out.

    So are those of tenants with a bound on what they run: `claim_bounded`.
    """
    rows = await connection.execute(
        _CLAIM_UNBOUNDED, {"ids": list(task_ids), "model": model, "worker": worker, "lease_s": lease_s}
    )
    return _claims(rows, model)


async def claim_bounded(
    connection: AsyncConnection, task_ids: Sequence[str], *, model: str, worker: str, lease_s: float
) -> list[Claim]:
    """Claim as many as may run of the tasks whose tenants have a bound on that; the rest is not published any more.

    Needs a transaction: the tenants are locked until it ends, so that nobody else counts the same places.
    """
    tenants = [row.id for row in await connection.execute(_LOCK_BOUNDED, {"ids": list(task_ids)})]
    if not tenants:
        return []
    # a statement of its own: it sees what ran when the lock was got
    rows = await connection.execute(
        _CLAIM_BOUNDED,
        {"ids": list(task_ids), "tenants": tenants, "model": model, "worker": worker, "lease_s": lease_s},
    )
    return _claims(rows, model)


def _claims(rows: sa.CursorResult[Any], model: str) -> list[Claim]:
    return [
        Claim(
            task_id=row.id,
            tenant_id=row.tenant_id,
            attempt=row.attempt,
            url=row.url,
            request=row.request,
            max_output_tokens=row.max_output_tokens,
            prompt_tokens=row.prompt_tokens,
            created_at=row.created_at,
            remaining_s=row.remaining_s,
            waited_s=row.waited_s,
            lane=Lane(model, LengthClass(row.length_class), Priority(row.priority)),
            failures=row.failures,
            preemptions=row.preemptions,
            tariff=tariff_of(row.prices),
            used=used_of(row),
            key_id=row.key_id,
            reserved_tokens=row.reserved_tokens,
            tenant_class=row.tenant_class,
            traceparent=row.traceparent,
            batch_id=row.batch_id,
            turned_back=row.turned_back,
        )
        for row in rows
    ]


_UNGRANTED = sa.text("""
SELECT t.id FROM tasks t WHERE t.id = ANY(:ids) AND t.state = 'queued'
  AND NOT EXISTS (
    SELECT 1 FROM grants g JOIN tenants n ON n.id = g.tenant_id AND n.disabled_at IS NULL
    WHERE g.tenant_id = t.tenant_id AND g.model = t.model)
""").bindparams(_IDS)


async def find_ungranted(connection: AsyncConnection, task_ids: Sequence[str]) -> list[str]:
    """Say which of these queued tasks' tenants lost their grant since they were accepted, or were disabled."""
    return [row.id for row in await connection.execute(_UNGRANTED, {"ids": list(task_ids)})]
