"""Bodies whose time is over: deleted, and of each its length and keyed hash kept.

Units: `*_s` seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.digests import pads_of
from storage.tables import purged_bodies


@dataclass(frozen=True, slots=True)
class Periods:
    """For how long bodies stay, from the end of their task unless it says otherwise."""

    retention_s: float  # of tenants that set none
    delivered_s: float  # after delivery, of tasks that are not to be stored; a poll may have broken off
    undelivered_s: float  # of such tasks that nobody asked for


@dataclass(frozen=True, slots=True)
class PurgedBodies:
    """What is known of a task's bodies after they are gone. Hashes are HMAC-SHA256 in hex."""

    request_bytes: int
    request_hash: str
    response_bytes: int | None
    response_hash: str | None


# of a column of texts, under the pads of a key
HASH = "sha256(CAST(:outer AS bytea) || sha256(CAST(:inner AS bytea) || convert_to({text}, 'UTF8')))"

_PURGE = sa.text(f"""
WITH due AS (
  SELECT due.id FROM tenants n, LATERAL (
    SELECT t.id FROM tasks t WHERE t.tenant_id = n.id AND t.purged_at IS NULL
      AND t.finished_at < now() - make_interval(secs => coalesce(n.retention_s, :retention_s))
    ORDER BY t.finished_at LIMIT :limit) due
  UNION
  SELECT t.id FROM tasks t WHERE NOT t.store AND t.purged_at IS NULL AND t.finished_at IS NOT NULL
    AND (t.delivered_at < now() - make_interval(secs => :delivered_s)
         OR t.finished_at < now() - make_interval(secs => :undelivered_s)
         OR EXISTS (SELECT 1 FROM batch_items i WHERE i.task_id = t.id AND i.part IS NOT NULL))
  UNION
  SELECT r.task_id FROM responses r JOIN tasks t ON t.id = r.task_id
  WHERE r.deleted_at IS NOT NULL AND t.finished_at < now() - make_interval(secs => :delivered_s)
), locked AS MATERIALIZED (
  -- a batch's line is delivered by standing in its results, and is needed until it does
  SELECT t.id FROM tasks t JOIN due USING (id)
  WHERE NOT EXISTS (SELECT 1 FROM batch_items i WHERE i.task_id = t.id AND i.part IS NULL)
  ORDER BY t.id LIMIT :limit FOR UPDATE OF t SKIP LOCKED
), bodies AS (
  DELETE FROM task_payloads p USING locked WHERE p.task_id = locked.id RETURNING p.*
), kept AS (
  INSERT INTO purged_bodies (task_id, request_bytes, request_hash, response_bytes, response_hash)
  SELECT task_id, octet_length(request), {HASH.format(text="request")},
    octet_length(response), {HASH.format(text="response")} FROM bodies
), asked AS (
  DELETE FROM responses r USING locked WHERE r.task_id = locked.id
)
UPDATE tasks t SET purged_at = coalesce(purged_at, now()), metadata = '{{}}' FROM locked WHERE t.id = locked.id
RETURNING t.id
""")


async def purge(connection: AsyncConnection, periods: Periods, *, hash_key: bytes, limit: int) -> list[str]:
    """Delete bodies that are past their time, or were delivered and not to be stored; return their tasks' ids.

    Task rows and ledger stay.
    """
    inner, outer = pads_of(hash_key)
    rows = await connection.execute(
        _PURGE,
        {
            "retention_s": periods.retention_s,
            "delivered_s": periods.delivered_s,
            "undelivered_s": periods.undelivered_s,
            "inner": inner,
            "outer": outer,
            "limit": limit,
        },
    )
    return [row.id for row in rows]


_DELIVERED = sa.text("""
UPDATE tasks SET delivered_at = now() WHERE id = ANY(:ids) AND NOT store AND delivered_at IS NULL
""").bindparams(sa.bindparam("ids", type_=sa.ARRAY(sa.Text)))


async def mark_delivered(connection: AsyncConnection, task_ids: Sequence[str]) -> int:
    """Note that who asked has the bodies of tasks that are not to be stored; return how many are new to that."""
    return (await connection.execute(_DELIVERED, {"ids": list(task_ids)})).rowcount


async def get_purged(connection: AsyncConnection, task_id: str) -> PurgedBodies | None:
    """Read what is known of a task's bodies that are gone."""
    query = sa.select(purged_bodies).where(purged_bodies.c.task_id == task_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    response_hash = row.response_hash.hex() if row.response_hash is not None else None
    return PurgedBodies(row.request_bytes, row.request_hash.hex(), row.response_bytes, response_hash)
