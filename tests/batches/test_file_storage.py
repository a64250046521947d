"""Rows and bytes of files: whatever is cut off between the two, neither stays behind for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from core.files import Purpose
from services.new_id import new_id
from services.read_files import find_file
from services.remove_files import remove_files
from services.store_file import finish_file, storing
from storage.blobs import BLOCK_BYTES, Blobs, file_key
from storage.files import NewFile
from tests.support.seeds import seed_caller


async def read_all(blocks: AsyncIterator[bytes]) -> bytes:
    return b"".join([block async for block in blocks])


async def store(database: AsyncEngine, blobs: Blobs, tenant_id: str, *, finish: bool = True) -> str:
    file_id = new_id("file")
    async with storing(
        database, blobs, NewFile(file_id, tenant_id, Purpose.USER_DATA, "a.txt", None)
    ) as writer:
        await writer.write(b"hello")
    if finish:
        assert await finish_file(database, file_id, size_bytes=writer.bytes) is not None
    return file_id


async def count_rows(database: AsyncEngine) -> int:
    async with database.connect() as connection:
        return int((await connection.execute(sa.text("SELECT count(*) FROM files"))).scalar_one())


async def sweep(database: AsyncEngine, blobs: Blobs) -> int:
    return await remove_files(database, blobs, unfinished_s=60, limit=10)


async def test_a_crash_between_bytes_and_row_is_swept_up_once_it_is_old(
    database: AsyncEngine, blobs: Blobs
) -> None:
    caller = await seed_caller(database)
    file_id = await store(database, blobs, caller.tenant_id, finish=False)
    assert await find_file(database, caller.tenant_id, file_id) is None
    assert await sweep(database, blobs) == 0
    async with database.begin() as connection:
        await connection.execute(sa.text("UPDATE files SET created_at = now() - interval '61 seconds'"))
    assert await sweep(database, blobs) == 1
    assert (await count_rows(database), await blobs.count("files")) == (0, 0)
    assert await finish_file(database, file_id, size_bytes=5) is None


async def test_a_failed_write_leaves_no_bytes_and_soon_no_row(database: AsyncEngine, blobs: Blobs) -> None:
    caller = await seed_caller(database)
    new = NewFile(new_id("file"), caller.tenant_id, Purpose.BATCH, "a.jsonl", None)
    with pytest.raises(asyncio.CancelledError):
        async with storing(database, blobs, new) as writer:
            await writer.write(b"x" * (2 * BLOCK_BYTES))
            raise asyncio.CancelledError
    assert await blobs.count("files") == 0
    assert await sweep(database, blobs) == 1
    assert await count_rows(database) == 0


async def test_an_expired_file_does_not_exist_and_is_removed(database: AsyncEngine, blobs: Blobs) -> None:
    caller = await seed_caller(database)
    kept, expired = [await store(database, blobs, caller.tenant_id) for _ in range(2)]
    async with database.begin() as connection:
        await connection.execute(
            sa.text("UPDATE files SET expires_at = now() WHERE id = :id"), {"id": expired}
        )
    assert await find_file(database, caller.tenant_id, expired) is None
    assert await sweep(database, blobs) == 1
    assert await find_file(database, caller.tenant_id, kept) is not None
    assert await read_all(blobs.reading(file_key(kept))) == b"hello"
    with pytest.raises(FileNotFoundError):
        await read_all(blobs.reading(file_key(expired)))


@pytest.mark.parametrize("url", ["folder", "memory://test-blobs"])
async def test_blobs_are_read_from_any_offset_in_any_store(url: str, tmp_path: object) -> None:
    blobs = Blobs(f"{tmp_path}/blobs" if url == "folder" else url)
    content = bytes(range(256)) * (BLOCK_BYTES // 256) * 2 + b"end"
    async with blobs.writing("parts/a/1") as writer:
        for at in range(0, len(content), 100_000):
            await writer.write(content[at : at + 100_000])
    assert writer.bytes == len(content)
    assert await read_all(blobs.reading("parts/a/1")) == content
    assert await read_all(blobs.reading("parts/a/1", BLOCK_BYTES + 3)) == content[BLOCK_BYTES + 3 :]
    async with aclosing(blobs.reading("parts/a/1")) as blocks:
        assert len(await anext(blocks)) == BLOCK_BYTES
    await blobs.delete("parts/a")
    await blobs.delete("parts/a")
    assert await blobs.count("parts/a") == 0
    blobs.close()
