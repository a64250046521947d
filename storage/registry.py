"""Models, as a tenant sees them."""

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.grants import NO_LIMITS, GrantLimits
from core.lanes import LengthBounds
from storage.grants import LIMITS, limits_of
from storage.paging import Page, read_page
from storage.records import Model, SyncLimits
from storage.tables import grants, models


async def put_model(
    connection: AsyncConnection,
    *,
    name: str,
    path: str,
    max_model_len: int,
    default_max_tokens: int | None,
    bounds: LengthBounds,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    probe_prompt: str | None = None,
    probe_words: Sequence[str] = (),
    sync: SyncLimits | None = None,
    version: str | None = None,
) -> None:
    """Register a model or change its registration. `sync` None: the limits that it has stay."""
    values = {
        "path": path,
        "max_model_len": max_model_len,
        "default_max_tokens": default_max_tokens,
        "short_tokens": bounds.short,
        "medium_tokens": bounds.medium,
        "tool_parser": tool_parser,
        "reasoning_parser": reasoning_parser,
        "probe_prompt": probe_prompt,
        "probe_words": list(probe_words),
        "version": version,
        **(asdict(sync) if sync is not None else {}),
    }
    await connection.execute(
        insert(models).values(name=name, **values).on_conflict_do_update(index_elements=["name"], set_=values)
    )


async def granted_models(connection: AsyncConnection, tenant_id: str) -> list[Model]:
    """List the models that a tenant may use, by name and with its limits; the others do not exist for it."""
    rows = await connection.execute(
        sa.select(models, *LIMITS)
        .join(grants, grants.c.model == models.c.name)
        .where(grants.c.tenant_id == tenant_id)
        .order_by(models.c.name)
    )
    return [_model(row, limits_of(row)) for row in rows]


async def get_model(connection: AsyncConnection, name: str) -> Model | None:
    """Read a model's registration, whoever may use it."""
    row = (await connection.execute(sa.select(models).where(models.c.name == name))).one_or_none()
    return _model(row) if row else None


async def list_models(connection: AsyncConnection, page: Page) -> tuple[list[Model], bool]:
    """List registered models by name, whoever may use them, and whether there are more."""
    rows, has_more = await read_page(connection, sa.select(models), models.c.name, page)
    return [_model(row) for row in rows], has_more


async def delete_model(connection: AsyncConnection, name: str) -> None:
    """Delete a registration, with its grants and prices."""
    await connection.execute(sa.delete(models).where(models.c.name == name))


async def model_names(connection: AsyncConnection) -> list[str]:
    """List all models' names."""
    return list((await connection.execute(sa.select(models.c.name))).scalars())


def _model(row: sa.Row[tuple[object, ...]], limits: GrantLimits = NO_LIMITS) -> Model:
    return Model(
        name=row.name,
        path=row.path,
        max_model_len=row.max_model_len,
        # what a request gets that asks for nothing must be something that it may have
        default_max_tokens=_least(row.default_max_tokens, limits.max_output_tokens),
        bounds=LengthBounds(row.short_tokens, row.medium_tokens),
        owned_by=row.owned_by,
        created_at=row.created_at,
        limits=limits,
        tool_parser=row.tool_parser,
        reasoning_parser=row.reasoning_parser,
        probe_prompt=row.probe_prompt,
        probe_words=tuple(row.probe_words),
        sync_start_s=row.sync_start_s,
        sync_finish_s=row.sync_finish_s,
        sync_stream_s=row.sync_stream_s,
        version=row.version,
    )


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)
