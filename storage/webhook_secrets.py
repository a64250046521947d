"""Secrets that sign a tenant's webhooks: their ids and times; the texts are derived, see `core.webhooks`."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.tables import webhook_secrets

_IN_FORCE = sa.or_(webhook_secrets.c.expires_at.is_(None), webhook_secrets.c.expires_at > sa.func.now())
_END_EARLIER = sa.text("""
UPDATE webhook_secrets SET expires_at = now() + make_interval(secs => :overlap_s)
WHERE tenant_id = :tenant_id AND (expires_at IS NULL OR expires_at > now() + make_interval(secs => :overlap_s))
""")


async def insert_secret(
    connection: AsyncConnection, secret_id: str, tenant_id: str, overlap_s: float
) -> datetime:
    """Add a tenant's secret and let its earlier ones run out after that time; return when it was made."""
    await connection.execute(_END_EARLIER, {"tenant_id": tenant_id, "overlap_s": overlap_s})
    made = await connection.execute(
        webhook_secrets.insert()
        .values(id=secret_id, tenant_id=tenant_id)
        .returning(webhook_secrets.c.created_at)
    )
    created_at: datetime = made.scalar_one()
    return created_at


async def list_secrets(
    connection: AsyncConnection, tenant_id: str
) -> list[tuple[str, datetime, datetime | None]]:
    """List (id, made, ends) of a tenant's secrets in force, newest first."""
    query = sa.select(webhook_secrets).where(webhook_secrets.c.tenant_id == tenant_id, _IN_FORCE)
    rows = await connection.execute(query.order_by(webhook_secrets.c.id.desc()))
    return [(row.id, row.created_at, row.expires_at) for row in rows]


async def end_secret(connection: AsyncConnection, tenant_id: str, secret_id: str) -> bool:
    """End a secret now; False when it is not in force."""
    ended = await connection.execute(
        webhook_secrets.update()
        .where(webhook_secrets.c.id == secret_id, webhook_secrets.c.tenant_id == tenant_id, _IN_FORCE)
        .values(expires_at=sa.func.now())
    )
    return ended.rowcount > 0
