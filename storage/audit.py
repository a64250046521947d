"""The audit log: who changed what, when. Entries are added in the transaction of the change, and never touched."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.paging import Page, read_page
from storage.tables import audit_entries


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes something."""

    name: str  # the key's first characters and its name, or the command
    key_id: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change."""

    id: str
    created_at: datetime
    actor: str
    actor_key_id: str | None
    request_id: str | None
    action: str
    object_id: str
    tenant_id: str | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


async def insert_entry(
    connection: AsyncConnection,
    *,
    entry_id: str,
    actor: Actor,
    action: str,
    object_id: str,
    tenant_id: str | None,
    before: bytes | None,
    after: bytes | None,
) -> None:
    """Add an entry; `before` and `after` are JSON objects."""
    await connection.execute(
        audit_entries.insert().values(
            id=entry_id,
            actor_key_id=actor.key_id,
            actor=actor.name,
            request_id=actor.request_id,
            action=action,
            object_id=object_id,
            tenant_id=tenant_id,
            before=orjson.loads(before) if before is not None else sa.null(),
            after=orjson.loads(after) if after is not None else sa.null(),
        )
    )


async def list_entries(
    connection: AsyncConnection, page: Page, *, tenant_id: str | None, object_id: str | None
) -> tuple[list[AuditEntry], bool]:
    """List entries, of one tenant or object or of all, and say whether there are more."""
    query = sa.select(audit_entries)
    if tenant_id is not None:
        query = query.where(audit_entries.c.tenant_id == tenant_id)
    if object_id is not None:
        query = query.where(audit_entries.c.object_id == object_id)
    rows, has_more = await read_page(connection, query, audit_entries.c.id, page)
    return [
        AuditEntry(**{name: getattr(row, name) for name in AuditEntry.__dataclass_fields__}) for row in rows
    ], has_more
