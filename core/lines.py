"""Lines of a file that arrives in blocks: numbered, with the offset behind each, so that reading can go on there.

A byte order mark, CRLF and blank lines are taken; blank lines count in the numbers and are not returned.
"""

from collections.abc import Iterator
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank."""

    number: int  # from 1
    end: int  # offset of the byte behind it
    text: bytes  # without its end


class LineTooLongError(ValueError):
    """A line is longer than may be held in memory."""

    def __init__(self, number: int, max_bytes: int) -> None:
        super().__init__(f"the line is longer than {max_bytes} bytes")
        self.number = number


class LineSplitter:
    """Splits blocks; `number` lines and `offset` bytes came before the first."""

    def __init__(self, max_bytes: int, *, number: int = 0, offset: int = 0) -> None:
        self._max_bytes = max_bytes
        self.number, self.offset = number, offset  # of what was passed, blank lines included
        self._rest = b""

    def feed(self, block: bytes) -> Iterator[Line]:
        """Yield the lines that end in this block. Raises: LineTooLongError."""
        *whole, self._rest = (self._rest + block).split(b"\n")
        for raw in whole:
            line = self._line(raw, len(raw) + 1)
            if line is not None:
                yield line
        if len(self._rest) > self._max_bytes:
            raise LineTooLongError(self.number + 1, self._max_bytes)

    def end(self) -> Iterator[Line]:
        """Yield the last line when it has no end of its own."""
        raw, self._rest = self._rest, b""
        if raw:
            line = self._line(raw, len(raw))
            if line is not None:
                yield line

    def _line(self, raw: bytes, length: int) -> Line | None:
        first = self.offset == 0
        self.number += 1
        self.offset += length
        if len(raw) > self._max_bytes:
            raise LineTooLongError(self.number, self._max_bytes)
        text = (raw.removeprefix(_BOM) if first else raw).strip(b" \t\r")
        return Line(self.number, self.offset, text) if text else None
