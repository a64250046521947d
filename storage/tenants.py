"""Tenants: whose keys, grants, tasks and money everything is."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.paging import Page, read_page
from storage.tables import tenants


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant as stored."""

    id: str
    name: str
    created_at: datetime
    disabled_at: datetime | None
    retention_s: float | None  # of bodies; None: the deployment's
    tenant_class: str  # what metrics show instead of the tenant
    store: bool  # False: bodies go once they are delivered
    weight: float  # share of a model under contention
    max_queued_tasks: int | None  # of each model; None: the deployment's
    max_queued_tokens: int | None  # likewise; prompt and maximum output
    max_running_tasks: int | None  # at once, over all models; None: any number


def _of(row: Any) -> Tenant:
    return Tenant(
        id=row.id,
        name=row.name,
        created_at=row.created_at,
        disabled_at=row.disabled_at,
        retention_s=row.retention_s,
        tenant_class=row._mapping["class"],
        store=row.store,
        weight=row.weight,
        max_queued_tasks=row.max_queued_tasks,
        max_queued_tokens=row.max_queued_tokens,
        max_running_tasks=row.max_running_tasks,
    )


async def ensure_tenant(connection: AsyncConnection, tenant_id: str, name: str) -> str:
    """Return the id of the tenant of that name, creating it under `tenant_id` when missing."""
    await connection.execute(
        insert(tenants).values(id=tenant_id, name=name).on_conflict_do_nothing(index_elements=["name"])
    )
    found = await connection.execute(sa.select(tenants.c.id).where(tenants.c.name == name))
    return str(found.scalar_one())


async def insert_tenant(
    connection: AsyncConnection, tenant_id: str, name: str, settings: Mapping[str, Any]
) -> Tenant:
    """Add a tenant; `settings` by column. Raises: IntegrityError when the name is taken."""
    values = {**settings, "id": tenant_id, "name": name}
    return _of((await connection.execute(tenants.insert().values(values).returning(tenants))).one())


async def find_tenant(connection: AsyncConnection, id_or_name: str, *, lock: bool = False) -> Tenant | None:
    """Find a tenant by id or name; `lock` until the transaction ends."""
    query = sa.select(tenants).where(sa.or_(tenants.c.id == id_or_name, tenants.c.name == id_or_name))
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    return _of(row) if row else None


async def update_tenant(connection: AsyncConnection, tenant_id: str, changes: dict[str, Any]) -> Tenant:
    """Change columns of a tenant that exists; `disabled` is true or false and becomes the time."""
    values = dict(changes)
    if "disabled" in values:
        kept = sa.func.coalesce(tenants.c.disabled_at, sa.func.now())
        values["disabled_at"] = kept if values.pop("disabled") else sa.null()
    query = sa.update(tenants).where(tenants.c.id == tenant_id).values(values).returning(tenants)
    return _of((await connection.execute(query)).one())


async def list_tenants(connection: AsyncConnection, page: Page) -> tuple[list[Tenant], bool]:
    """List tenants, and whether there are more."""
    rows, has_more = await read_page(connection, sa.select(tenants), tenants.c.id, page)
    return [_of(row) for row in rows], has_more
