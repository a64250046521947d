"""Store a file: its row first, its bytes next, and then it exists. What stops in between is removed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncEngine

from core.files import Purpose
from storage import files
from storage.autocommit import autocommit
from storage.blobs import Blobs, BlobWriter, file_key
from storage.files import NewFile, StoredFile


@asynccontextmanager
async def storing(database: AsyncEngine, blobs: Blobs, new: NewFile) -> AsyncIterator[BlobWriter]:
    """Take a file's bytes; `finish_file` makes it exist. An exception gives it up."""
    async with autocommit(database) as connection:
        await files.insert_file(connection, new)
    try:
        async with blobs.writing(file_key(new.id)) as writer:
            yield writer
    except BaseException:
        await give_up_file(database, new.id)
        raise


async def finish_file(
    database: AsyncEngine,
    file_id: str,
    *,
    size_bytes: int,
    purpose: Purpose | None = None,
    expires_after_s: float | None = None,
) -> StoredFile | None:
    """Make a written file exist; None when it took so long that it was given up."""
    async with autocommit(database) as connection:
        return await files.finish_file(
            connection, file_id, size_bytes=size_bytes, purpose=purpose, expires_after_s=expires_after_s
        )


async def give_up_file(database: AsyncEngine, file_id: str) -> None:
    """Leave a file to the remover, whatever there is of it."""
    async with autocommit(database) as connection:
        await files.delete_file(connection, file_id)
