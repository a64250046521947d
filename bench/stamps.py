"""The load of `bench chunk`: streams whose text is the time at which the engine made it, against their arrival.

It runs as a process of its own (`python -m bench.stamps`) and only notes times while streams are open.
"""

import asyncio
import re
import time
from typing import Any

import orjson

from bench.peer import claim_output, serve

_STAMP = re.compile(rb'"content":"((?:[0-9]+ )+)"')
_END = b"data: [DONE]"


class Stream(asyncio.Protocol):
    """One streamed chat completion on a connection of its own."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self.heard: list[tuple[int, bytes]] = []  # (monotonic ns, bytes)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self.heard.append((time.monotonic_ns(), data))
        self._tail = (self._tail + data)[-64:]
        if _END in self._tail and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"a stream broke: {bytes(self._tail)!r}"))


def added_ms(heard: list[tuple[int, bytes]]) -> list[float]:
    """Milliseconds from the engine to here of each token, in order."""
    return [
        (at - int(stamp)) / 1e6
        for at, data in heard
        for found in _STAMP.finditer(data)
        for stamp in found[1].split()
    ]


async def _handle(command: dict[str, Any]) -> Any:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {command['host']}:{command['port']}\r\n"
        f"Authorization: Bearer {command['key']}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    loop, opened = asyncio.get_running_loop(), list[tuple[asyncio.BaseTransport, Stream]]()

    async def one(at: int, request: dict[str, Any]) -> Stream:
        await asyncio.sleep(at * command["apart_s"])
        encoded = orjson.dumps(request)
        text = f"{head}Content-Length: {len(encoded)}\r\n\r\n".encode() + encoded
        pair = await loop.create_connection(lambda: Stream(text), command["host"], command["port"])
        opened.append(pair)
        await pair[1].done
        return pair[1]

    try:
        streams = await asyncio.gather(*(one(at, body) for at, body in enumerate(command["bodies"])))
    finally:
        for transport, _ in opened:
            transport.close()
    times = [added_ms(stream.heard) for stream in streams]
    return {"first_ms": [one[0] for one in times], "later_ms": [value for one in times for value in one[1:]]}


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(claim_output(), _handle))
