"""Reading multipart/form-data as it arrives: nothing of a part's content is kept here.

Source: RFC 7578; the parser is python-multipart's, as Starlette uses it, without Starlette's spooling of files.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from api.sse import ClientGoneError
from schemas.errors import RequestError

_MAX_PARTS = 32
_MAX_HEADER_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Begin:
    """A part begins. `filename` is None for a plain field."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of the newest part."""

    data: bytes


class _Events:
    """The parser's callbacks, turned into events."""

    def __init__(self) -> None:
        self.found: list[Begin | Data] = []
        self.ended = False
        self._parts = self._header_bytes = 0
        self._name, self._value = b"", b""
        self._disposition = b""

    def on_part_begin(self) -> None:
        self._parts += 1
        self._disposition, self._header_bytes = b"", 0
        if self._parts > _MAX_PARTS:
            raise _malformed("it has too many parts")

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += self._header(data[start:end])

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._header(data[start:end])

    def _header(self, data: bytes) -> bytes:
        self._header_bytes += len(data)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise _malformed("a part's headers are too long")
        return data

    def on_header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name, self._value = b"", b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise _malformed("a part has no name")
        filename = options.get(b"filename")
        self.found.append(Begin(_text(options[b"name"]), None if filename is None else _text(filename)))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.found.append(Data(data[start:end]))

    def on_end(self) -> None:
        self.ended = True


async def read_parts(request: Request, max_bytes: int) -> AsyncIterator[Begin | Data]:
    """Yield the parts of a form in pieces. Raises: RequestError 400, 413, 415, ClientGoneError."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise RequestError(415, "The body must be multipart/form-data.", "unsupported_media_type")
    if not options.get(b"boundary"):
        raise _malformed("its Content-Type names no boundary")
    too_large = RequestError(413, f"The body is larger than {max_bytes} bytes.", "request_too_large")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    events, received = _Events(), 0
    names = (name for name in dir(events) if name.startswith("on_"))
    try:
        parser = MultipartParser(
            options[b"boundary"],
            {name: getattr(events, name) for name in names},  # type: ignore[arg-type]
        )
        async for piece in request.stream():
            received += len(piece)
            if received > max_bytes:  # a chunked body declares no length
                raise too_large
            if piece:
                parser.write(piece)
            found, events.found = events.found, []
            for event in found:
                yield event
        parser.finalize()
    except FormParserError as error:
        raise _malformed(str(error)) from error
    except ClientDisconnect as error:
        raise ClientGoneError from error
    if not events.ended:
        raise _malformed("it ends before its last boundary")


def _malformed(why: str) -> RequestError:
    return RequestError(400, f"The form is malformed: {why}.", "invalid_multipart")


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
