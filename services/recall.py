"""Read and delete responses, and the conversations they go on from."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import responses, tasks
from storage.autocommit import autocommit
from storage.responses import Response, Turn


async def find_response(
    database: AsyncEngine, tenant_id: str, response_id: str, *, deleted: bool = False
) -> Response | None:
    """Read one response; None for an unknown or deleted id and for another tenant's alike.

    `deleted`: for whoever waits for it already, and so may see one that is not kept.
    """
    async with autocommit(database) as connection:
        return await responses.get_response(connection, tenant_id, response_id, deleted=deleted)


async def read_exchange(database: AsyncEngine, task_id: str) -> tuple[str, str | None] | None:
    """Read what a task sent to the engine and what came back, both as JSON text; None when it is purged."""
    async with autocommit(database) as connection:
        return await tasks.get_payload(connection, task_id)


async def list_turns(database: AsyncEngine, tenant_id: str, response_id: str) -> Sequence[Turn]:
    """Read the conversation up to a response, oldest turn first."""
    async with autocommit(database) as connection:
        return await responses.list_turns(connection, tenant_id, response_id)


async def delete_response(database: AsyncEngine, tenant_id: str, response_id: str) -> str | None:
    """Make a response unknown from now on; return its task's id, None when there is no such response."""
    async with database.begin() as connection:
        return await responses.mark_deleted(connection, tenant_id, response_id)
