"""The load on the whole stack: submit a task, follow its events to the end, and again, N at a time.

It runs as a process of its own (`python -m bench.client`) and does as little for a chunk as can be, because
it shares the machine with what it measures: one kept-alive connection a place in flight, bytes collected as
they come, and frames taken apart once the stream has ended.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from bench.peer import claim_output, serve

_END = b"\r\n0\r\n\r\n"  # of a chunked body: frames end in a line feed, so nothing else looks like it
_FIRST = b"event: task.delta\n"


class LoadError(Exception):
    """A request did not end as it should: a run with failures is no measurement."""


@dataclass(slots=True)
class Done:
    """One task, from its submit to the end of its stream."""

    output_tokens: int
    chunks: int
    first_s: float  # to the first text
    total_s: float


class Connection(asyncio.Protocol):
    """One kept-alive HTTP/1.1 connection with one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._body_at = 0  # 0: the head is not complete
        self._length: int | None = None  # None: chunked
        self._done: asyncio.Future[tuple[int, bytes]] | None = None
        self.first_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(LoadError(f"the API closed a connection: {exc}"))

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        buffer = self._buffer
        buffer += data
        if not self._body_at:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body_at = end + 4
            head = bytes(buffer[:end]).lower()
            found = head.partition(b"\r\ncontent-length:")[2]
            self._length = int(found.partition(b"\r\n")[0]) if found else None
        if self._length is not None:
            if len(buffer) - self._body_at < self._length:
                return
        else:
            if not self.first_at and _FIRST in buffer:
                self.first_at = time.perf_counter()
            if not buffer.endswith(_END):
                return
        assert self._done is not None
        self._done.set_result((int(buffer[9:12]), bytes(buffer[self._body_at :])))

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send one request; return the status and the body as sent (chunk sizes and all). Raises: LoadError."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise LoadError("the API closed an idle connection")
        self._buffer.clear()
        self._body_at, self._length, self.first_at = 0, None, 0.0
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()


def final_usage(stream: bytes) -> tuple[int, int]:
    """Return output tokens and text chunks of a whole stream. Raises: LoadError unless it completed."""
    at = stream.rfind(b"event: task.completed\ndata: ")
    if at < 0:
        raise LoadError(f"a task did not complete: {stream[-300:]!r}")
    data = stream[at:].split(b"\n", 2)[1].removeprefix(b"data: ")
    return int(orjson.loads(data)["usage"]["completion_tokens"]), stream.count(_FIRST)


class Load:
    """Requests against one API."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._host, self._port = host, port
        self._head = f"Host: {host}:{port}\r\nAuthorization: Bearer {key}\r\n".encode()

    def _post(self, path: str, body: bytes) -> bytes:
        head = b"POST %s HTTP/1.1\r\n%sContent-Type: application/json\r\n" % (path.encode(), self._head)
        return b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)

    def _get(self, path: str) -> bytes:
        return b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), self._head)

    async def one(self, connection: Connection, body: bytes) -> Done:
        """Run one task to its end. Raises: LoadError."""
        began = time.perf_counter()
        status, answer = await connection.exchange(self._post("/v1/tasks", body))
        if status != 202:
            raise LoadError(f"submit: {status} {answer[:300]!r}")
        path = f"/v1/tasks/{orjson.loads(answer)['id']}/events"
        status, stream = await connection.exchange(self._get(path))
        ended = time.perf_counter()
        if status != 200:
            raise LoadError(f"events: {status} {stream[:300]!r}")
        tokens, chunks = final_usage(stream)
        return Done(tokens, chunks, connection.first_at - began, ended - began)

    async def run(self, bodies: Sequence[bytes], in_flight: int) -> tuple[list[Done], float]:
        """Run all bodies, `in_flight` at a time; return what became of them and the whole time."""
        loop = asyncio.get_running_loop()
        waiting, done = list(reversed(bodies)), list[Done]()

        async def place(connection: Connection) -> None:
            while waiting:
                done.append(await self.one(connection, waiting.pop()))

        connections = [
            (await loop.create_connection(Connection, self._host, self._port))[1]
            for _ in range(min(in_flight, len(bodies)))
        ]
        began = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for connection in connections:
                    group.create_task(place(connection))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            for connection in connections:
                connection.close()
        return done, time.perf_counter() - began


async def _handle(command: dict[str, Any]) -> Any:
    load = Load(command["host"], command["port"], command["key"])
    bodies = [orjson.dumps({"url": "/v1/chat/completions", "body": body}) for body in command["bodies"]]
    done, wall_s = await load.run(bodies, command["in_flight"])
    return {
        "wall_s": wall_s,
        "tokens": sum(one.output_tokens for one in done),
        "chunks": sum(one.chunks for one in done),
        "first_s": [one.first_s for one in done],
        "total_s": [one.total_s for one in done],
    }


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(claim_output(), _handle))
