"""Reading a batch's input file: from any offset on, as many lines as may be held at once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from core.lines import Line, LineSplitter
from storage.batches import Batch
from storage.blobs import Blobs, file_key

WINDOW_BYTES = 8 << 20  # of lines held in memory


async def read_blocks(
    batch: Batch, blobs: Blobs, splitter: LineSplitter
) -> AsyncGenerator[tuple[list[Line], bool], None]:
    """Yield the lines from the splitter's offset on, block by block, and whether they are the last.

    Raises: LineTooLongError, FileNotFoundError.
    """
    async with aclosing(blobs.reading(file_key(batch.input_file_id), splitter.offset)) as blocks:
        async for block in blocks:
            yield await asyncio.to_thread(_split, splitter, block), False
    yield list(splitter.end()), True


def _split(splitter: LineSplitter, block: bytes) -> list[Line]:
    return list(splitter.feed(block))


async def read_window(
    batch: Batch, blobs: Blobs, *, most: int, max_line_bytes: int
) -> tuple[list[Line], int, int]:
    """Read the lines behind the batch's cursor, at most so many; return them and the cursor behind them."""
    splitter = LineSplitter(max_line_bytes, number=batch.cursor_line, offset=batch.cursor_bytes)
    lines: list[Line] = []
    size = 0
    async with aclosing(read_blocks(batch, blobs, splitter)) as blocks:
        async for found, last in blocks:
            for line in found:
                lines.append(line)
                size += len(line.text)
                if len(lines) >= most or size >= WINDOW_BYTES:
                    return lines, line.end, line.number
            if last:
                break
    return lines, batch.input_bytes, splitter.number
