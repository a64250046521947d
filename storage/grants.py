"""Grants: which tenant may use which model, and how much of it."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.grants import NO_LIMITS, GrantLimits
from core.lanes import Priority
from storage.paging import Page, read_page
from storage.tables import grants

LIMITS = (
    grants.c.max_prompt_tokens,
    grants.c.max_output_tokens,
    grants.c.max_open_tasks,
    grants.c.priorities,
    grants.c.endpoints,
)


@dataclass(frozen=True, slots=True)
class Grant:
    """A tenant's leave to use a model."""

    id: str  # tenant_id/model
    tenant_id: str
    model: str
    created_at: datetime
    limits: GrantLimits


def limits_of(row: Any) -> GrantLimits:
    """Build from a row that has the columns LIMITS."""
    return GrantLimits(
        max_prompt_tokens=row.max_prompt_tokens,
        max_output_tokens=row.max_output_tokens,
        max_open_tasks=row.max_open_tasks,
        priorities=None if row.priorities is None else tuple(map(Priority, row.priorities)),
        endpoints=None if row.endpoints is None else tuple(row.endpoints),
    )


def _of(row: Any) -> Grant:
    return Grant(f"{row.tenant_id}/{row.model}", row.tenant_id, row.model, row.created_at, limits_of(row))


def _is(tenant_id: str, model: str) -> sa.ColumnElement[bool]:
    return sa.and_(grants.c.tenant_id == tenant_id, grants.c.model == model)


async def get_grant(connection: AsyncConnection, tenant_id: str, model: str) -> Grant | None:
    """Read a grant and lock it until the transaction ends."""
    query = sa.select(grants).where(_is(tenant_id, model)).with_for_update()
    row = (await connection.execute(query)).one_or_none()
    return _of(row) if row else None


async def put_grant(
    connection: AsyncConnection, tenant_id: str, model: str, limits: GrantLimits = NO_LIMITS
) -> Grant:
    """Let a tenant use a model within limits, which replace former ones. Raises: IntegrityError: no such model."""
    values = asdict(limits)
    for name in ("priorities", "endpoints"):
        values[name] = None if values[name] is None else list(values[name])
    query = (
        insert(grants)
        .values(tenant_id=tenant_id, model=model, **values)
        .on_conflict_do_update(index_elements=["tenant_id", "model"], set_=values)
        .returning(grants)
    )
    return _of((await connection.execute(query)).one())


async def ensure_grant(connection: AsyncConnection, tenant_id: str, model: str) -> None:
    """Let a tenant use a model; a grant that exists keeps its limits."""
    await connection.execute(insert(grants).values(tenant_id=tenant_id, model=model).on_conflict_do_nothing())


async def delete_grant(connection: AsyncConnection, tenant_id: str, model: str) -> None:
    """Take a model away from a tenant."""
    await connection.execute(sa.delete(grants).where(_is(tenant_id, model)))


async def list_grants(
    connection: AsyncConnection, page: Page, *, tenant_id: str | None, model: str | None
) -> tuple[list[Grant], bool]:
    """List grants, of one tenant or model or of all, and whether there are more."""
    query = sa.select(grants)
    if tenant_id is not None:
        query = query.where(grants.c.tenant_id == tenant_id)
    if model is not None:
        query = query.where(grants.c.model == model)
    key = grants.c.tenant_id + "/" + grants.c.model
    rows, has_more = await read_page(connection, query, key, page)
    return [_of(row) for row in rows], has_more
