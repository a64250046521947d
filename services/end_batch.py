"""The end of a batch: its parts become files, and its state a final one."""

from sqlalchemy.ext.asyncio import AsyncEngine

from core.batches import BatchState, end_of
from core.files import Purpose
from services.new_id import new_id
from services.store_file import storing
from storage import batch_items, batches, files
from storage.autocommit import autocommit
from storage.batch_items import OvertakenError
from storage.batches import Batch
from storage.blobs import Blobs
from storage.files import NewFile


async def cancel_batch(database: AsyncEngine, tenant_id: str, batch_id: str) -> bool:
    """Have a batch cancelled; False when it is final, or being finalized or cancelled already."""
    async with autocommit(database) as connection:
        return await batches.ask_cancel(connection, tenant_id, batch_id)


async def end_batch(database: AsyncEngine, blobs: Blobs, batch: Batch) -> BatchState:
    """Put the files together and end the batch. Raises: OvertakenError, and then nothing has changed.

    Files that were written and not taken are removed as any unfinished upload is.
    """
    if batch.state is BatchState.IN_PROGRESS:
        async with autocommit(database) as connection:
            if not await batches.finalize(connection, batch.id):
                raise OvertakenError(batch.id)
    async with autocommit(database) as connection:
        parts = await batch_items.list_parts(connection, batch.id)
    if len(parts) != batch.parts:
        raise OvertakenError(batch.id)
    output = await _put_together(database, blobs, batch, "output", [key for key, _ in parts if key])
    errors = await _put_together(database, blobs, batch, "error", [key for _, key in parts if key])
    cancelled = batch.at[BatchState.CANCELLING] is not None
    state = end_of(cancelled=cancelled, unfinished_lines=batch.unfinished + (batch.model is None))
    async with database.begin() as connection:
        for file in (output, errors):
            if file and not await files.finish_file(connection, file[0], size_bytes=file[1]):
                raise OvertakenError(batch.id)
        ids = {"output_file_id": output and output[0], "error_file_id": errors and errors[0]}
        if not await batches.end(connection, batch.id, state, parts=batch.parts, **ids):
            raise OvertakenError(batch.id)
    return state


async def _put_together(
    database: AsyncEngine, blobs: Blobs, batch: Batch, kind: str, keys: list[str]
) -> tuple[str, int] | None:
    """Write one file of parts; return its id and bytes, None without a part."""
    if not keys:
        return None
    new = NewFile(
        new_id("file"),
        batch.caller.tenant_id,
        Purpose.BATCH_OUTPUT,
        f"{batch.id}_{kind}.jsonl",
        batch.output_ttl_s,
    )
    async with storing(database, blobs, new) as writer:
        for key in keys:
            async for block in blobs.reading(key):
                await writer.write(block)
    return new.id, writer.bytes


async def remove_leftovers(
    database: AsyncEngine, blobs: Blobs, *, retention_s: float, limit: int
) -> dict[str, int]:
    """Delete the parts of ended batches, and the lines of those past their retention; return counts."""
    async with autocommit(database) as connection:
        leftovers = await batch_items.find_leftovers(connection, limit=limit)
    for batch_id in leftovers:
        await blobs.delete(parts_key(batch_id))
        async with autocommit(database) as connection:
            await batch_items.forget_parts(connection, batch_id)
    async with autocommit(database) as connection:
        purged = await batch_items.purge_items(connection, older_s=retention_s, limit=limit)
    return {"batches": len(leftovers), "lines": purged}


def parts_key(batch_id: str) -> str:
    """The folder of a batch's parts."""
    return f"parts/{batch_id}"
