"""Files that are gone for their owners: delete the bytes, then the rows."""

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import files
from storage.autocommit import autocommit
from storage.blobs import Blobs, file_key


async def delete_file(database: AsyncEngine, tenant_id: str, file_id: str) -> bool:
    """Delete a tenant's file; False when there is none of that id."""
    async with autocommit(database) as connection:
        return await files.delete_file(connection, file_id, tenant_id)


async def remove_files(database: AsyncEngine, blobs: Blobs, *, unfinished_s: float, limit: int) -> int:
    """Delete bytes and rows of deleted, expired and never finished files; return how many.

    A crash in between leaves the row, so the next round finds what is left.
    """
    async with database.begin() as connection:
        await files.condemn_files(connection, unfinished_s=unfinished_s, limit=limit)
    async with autocommit(database) as connection:
        removable = await files.find_removable(connection, limit=limit)
    for file_id in removable:
        await blobs.delete(file_key(file_id))
    if removable:
        async with autocommit(database) as connection:
            await files.forget_files(connection, removable)
    return len(removable)
