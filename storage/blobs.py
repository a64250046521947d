"""Bytes of files, in a local folder or in whatever store an fsspec URL names (s3://, gs://, abfs://, …).

Written and read in blocks on threads of its own: memory holds a block or two of each open file, and a slow store
delays nobody else. A blob appears whole or is removed by whoever finds its row; keys are made here of ids.

Raises from every method: OSError (FileNotFoundError for a missing blob), or what the store's driver raises.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from fsspec.core import url_to_fs

BLOCK_BYTES = 1 << 20
_PART_BYTES = 8 << 20  # of an upload to an object store: what its driver buffers
_THREADS = 8

Result = TypeVar("Result")


def file_key(file_id: str) -> str:
    """Where a file's bytes are."""
    return f"files/{file_id}"


class BlobWriter:
    """One blob being written; counts what it took."""

    def __init__(self, blobs: "Blobs", file: Any) -> None:
        self._blobs, self._file = blobs, file
        self._held = bytearray()
        self.bytes = 0

    async def write(self, data: bytes | memoryview) -> None:
        """Append; blocks are handed to the store as they fill."""
        self.bytes += len(data)
        self._held += data
        if len(self._held) >= BLOCK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Hand over what is held."""
        if self._held:
            block, self._held = bytes(self._held), bytearray()
            await self._blobs.run(lambda: self._file.write(block))


class Blobs:
    """The store under one URL."""

    def __init__(self, url: str) -> None:
        """Raises: ImportError naming the driver's package, ValueError for an unknown kind of URL."""
        self._fs, root = url_to_fs(url)
        self._root = root.rstrip("/")
        self._local = "file" in self._protocols()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")

    def _protocols(self) -> tuple[str, ...]:
        protocol = self._fs.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    async def run(self, call: Callable[[], Result]) -> Result:
        """Run a blocking call of the store's driver on this store's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @asynccontextmanager
    async def writing(self, key: str) -> AsyncIterator[BlobWriter]:
        """Write a blob; it is durable when the block ends without an exception, and gone when with one."""
        path = self._path(key)
        file = await self.run(lambda: self._open(path))
        writer = BlobWriter(self, file)
        try:
            yield writer
            await writer.flush()
            await self.run(lambda: self._close(file, path))
        except BaseException:
            await asyncio.shield(self.run(lambda: self._discard(file, path)))
            raise

    def _open(self, path: str) -> Any:
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        return self._fs.open(path, "wb", block_size=_PART_BYTES)

    def _close(self, file: Any, path: str) -> None:
        if self._local:  # an object store has the bytes when close returns
            file.flush()
            os.fsync(file.fileno())
        file.close()
        if self._local:
            folder = os.open(path.rpartition("/")[0], os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _discard(self, file: Any, path: str) -> None:
        with suppress(Exception):
            file.discard() if hasattr(file, "discard") else file.close()
        with suppress(Exception):
            self._fs.rm_file(path)

    async def reading(self, key: str, start: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield a blob's bytes from an offset on, block by block."""
        path = self._path(key)
        file = await self.run(lambda: self._fs.open(path, "rb", block_size=_PART_BYTES))
        try:
            await self.run(lambda: file.seek(start))
            while block := await self.run(lambda: file.read(BLOCK_BYTES)):
                yield block
        finally:
            await asyncio.shield(self.run(file.close))

    async def delete(self, key: str) -> None:
        """Delete a blob, or every blob of a folder; one that is not there is deleted."""
        path = self._path(key)
        with suppress(FileNotFoundError):
            await self.run(lambda: self._fs.rm(path, recursive=True))

    async def count(self, prefix: str) -> int:
        """Count the blobs of a folder."""
        path = self._path(prefix)
        try:
            return len(await self.run(lambda: self._fs.find(path)))
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)
