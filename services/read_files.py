"""Read files for their owner."""

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import files
from storage.autocommit import autocommit
from storage.files import StoredFile


async def find_file(database: AsyncEngine, tenant_id: str, file_id: str) -> StoredFile | None:
    """Read one file; None for an unknown id and for another tenant's alike."""
    async with autocommit(database) as connection:
        return await files.get_file(connection, tenant_id, file_id)


async def list_file_page(
    database: AsyncEngine,
    tenant_id: str,
    *,
    limit: int,
    newest_first: bool,
    after: str | None,
    purpose: str | None,
) -> tuple[list[StoredFile], bool] | None:
    """List a page and say whether there is more; None when `after` is not one of the tenant's files."""
    async with autocommit(database) as connection:
        if after is not None and await files.get_file(connection, tenant_id, after) is None:
            return None
        found = await files.list_files(
            connection, tenant_id, limit=limit + 1, newest_first=newest_first, after=after, purpose=purpose
        )
    return found[:limit], len(found) > limit
