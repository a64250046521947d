"""Files that were deleted, expired or never finished, and pieces of ended batches: bytes and rows are removed."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from services.end_batch import remove_leftovers
from services.remove_files import remove_files
from storage.blobs import Blobs

_LIMIT = 100
_GRACE_S = 60.0  # beyond the time that an upload gets


class FileRemoval:
    """The remover's tick."""

    def __init__(self, database: AsyncEngine, blobs: Blobs, *, upload_s: float, retention_s: float) -> None:
        self._database, self._blobs, self._unfinished_s = database, blobs, upload_s + _GRACE_S
        self._retention_s = retention_s

    async def __call__(self) -> Mapping[str, int]:
        """Remove what is to go now."""
        removed = await remove_files(
            self._database, self._blobs, unfinished_s=self._unfinished_s, limit=_LIMIT
        )
        leftovers = await remove_leftovers(
            self._database, self._blobs, retention_s=self._retention_s, limit=_LIMIT
        )
        return {"files": removed, **leftovers}
