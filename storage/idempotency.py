"""Idempotency keys: what a tenant's key was used for, and what was answered."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was accepted under a key. `answer`: the JSON text told then; None where none was kept."""

    object_id: str
    status: int
    answer: str | None


# Held to the end of the transaction. Two keys of one hash only ask one of their callers to try again.
_LOCK = sa.text("SELECT pg_try_advisory_xact_lock(hashtextextended(:tenant_id || ' ' || :key, 0))")


async def lock(connection: AsyncConnection, tenant_id: str, key: str) -> bool:
    """Hold a key until the transaction ends; False when another transaction holds it."""
    return bool((await connection.execute(_LOCK, {"tenant_id": tenant_id, "key": key})).scalar_one())


_FIND = sa.text("""
SELECT body_digest, coalesce(object_id, task_id) AS object_id, status, answer FROM idempotency_keys
WHERE tenant_id = :tenant_id AND key = :key
  AND (CAST(:within_s AS float8) IS NULL OR created_at > now() - make_interval(secs => :within_s))
""")


async def find(
    connection: AsyncConnection, tenant_id: str, key: str, *, within_s: float | None
) -> tuple[bytes, Earlier] | None:
    """Return (body digest, what was accepted) of a key used before, of any time or within the last seconds."""
    values = {"tenant_id": tenant_id, "key": key, "within_s": within_s}
    row = (await connection.execute(_FIND, values)).one_or_none()
    return (row.body_digest, Earlier(row.object_id, row.status, row.answer)) if row else None


_PUT = sa.text("""
INSERT INTO idempotency_keys (tenant_id, key, body_digest, task_id, object_id, status, answer)
VALUES (:tenant_id, :key, :body_digest, :task_id, :object_id, :status, :answer)
ON CONFLICT (tenant_id, key) DO UPDATE SET body_digest = excluded.body_digest, task_id = excluded.task_id,
  object_id = excluded.object_id, status = excluded.status, answer = excluded.answer, created_at = now()
""")


async def put(
    connection: AsyncConnection,
    tenant_id: str,
    key: str,
    body_digest: bytes,
    earlier: Earlier,
    *,
    task_id: str | None,
) -> None:
    """Store a key; one of that name that is there is replaced, so the caller must hold its lock."""
    values = {
        "tenant_id": tenant_id,
        "key": key,
        "body_digest": body_digest,
        "task_id": task_id,
        "object_id": earlier.object_id,
        "status": earlier.status,
        "answer": earlier.answer,
    }
    await connection.execute(_PUT, values)


_DELETE = sa.text("DELETE FROM idempotency_keys WHERE tenant_id = :tenant_id AND key = :key")


async def delete(connection: AsyncConnection, tenant_id: str, key: str) -> None:
    """Delete a key."""
    await connection.execute(_DELETE, {"tenant_id": tenant_id, "key": key})


_DELETE_OLD = sa.text("""
DELETE FROM idempotency_keys WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM idempotency_keys WHERE created_at < now() - make_interval(secs => :older_s)
  ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED)
""")


async def delete_old(connection: AsyncConnection, *, older_s: float, limit: int) -> int:
    """Delete keys used longer ago than that; return how many."""
    return (await connection.execute(_DELETE_OLD, {"older_s": older_s, "limit": limit})).rowcount
