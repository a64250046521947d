"""Register models, and take them out of service."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from core.lanes import LengthBounds
from services.change import ConflictError, MissingError, changing
from storage import registry, tasks
from storage.audit import Actor
from storage.autocommit import autocommit
from storage.paging import Page
from storage.records import Model, SyncLimits


async def put_model(
    database: AsyncEngine,
    actor: Actor,
    name: str,
    *,
    path: str,
    max_model_len: int,
    default_max_tokens: int | None,
    bounds: LengthBounds,
    tool_parser: str | None,
    reasoning_parser: str | None,
    probe_prompt: str | None,
    probe_words: Sequence[str],
    sync: SyncLimits,
    version: str | None,
) -> Model:
    """Register a model, or change its registration; nobody is granted it by that."""
    async with changing(database, actor) as change:
        before = await registry.get_model(change.connection, name)
        await registry.put_model(
            change.connection,
            name=name,
            path=path,
            max_model_len=max_model_len,
            default_max_tokens=default_max_tokens,
            bounds=bounds,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            probe_prompt=probe_prompt,
            probe_words=probe_words,
            sync=sync,
            version=version,
        )
        after = await registry.get_model(change.connection, name)
        assert after is not None
        await change.record("model.put", name, before=before, after=after)
        return after


async def delete_model(database: AsyncEngine, actor: Actor, name: str) -> Model:
    """Take a model out of service, with its grants; return what it was.

    Raises: MissingError; ConflictError while tasks for it are queued or running.
    """
    async with changing(database, actor) as change:
        before = await registry.get_model(change.connection, name)
        if before is None:
            raise MissingError("model", name)
        count = await tasks.count_open(change.connection, name)
        if count:
            raise ConflictError("model_in_use", f"{count} tasks for {name!r} are queued or running.")
        await registry.delete_model(change.connection, name)
        await change.record("model.delete", name, before=before)
        return before


async def read_model(database: AsyncEngine, name: str) -> Model:
    """Read a model's registration, whoever may use it. Raises: MissingError."""
    async with autocommit(database) as connection:
        found = await registry.get_model(connection, name)
    if found is None:
        raise MissingError("model", name)
    return found


async def list_models(database: AsyncEngine, page: Page) -> tuple[list[Model], bool]:
    """List registered models, whoever may use them, and whether there are more."""
    async with autocommit(database) as connection:
        return await registry.list_models(connection, page)
