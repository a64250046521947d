"""Batches whose input was not looked at yet: read once, and refused or begun."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from control.each import for_each
from services.read_batches import batches_to
from services.validate_batch import validate_batch
from storage.batches import Batch, Work
from storage.blobs import Blobs


class BatchValidation:
    """The validation's tick. `max_line_bytes`: a request's bound, and room for what is around it."""

    def __init__(self, database: AsyncEngine, blobs: Blobs, *, max_line_bytes: int) -> None:
        self._database, self._blobs, self._max_line_bytes = database, blobs, max_line_bytes

    async def __call__(self) -> Mapping[str, int]:
        """Validate what waits for it."""
        waiting = [batch for batch in await batches_to(Work.VALIDATE, self._database) if not batch.late]
        return {"validated": await for_each(waiting, self._validate)}

    async def _validate(self, batch: Batch) -> int:
        return await validate_batch(self._database, self._blobs, batch, max_line_bytes=self._max_line_bytes)
