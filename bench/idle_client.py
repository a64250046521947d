"""The load of `bench growth`: open streams in which nothing happens.

`python -m bench.idle_client`: tasks of a model without a worker, and on each one connection that follows its events. It
only counts what is open, because it shares the machine with what it measures.
"""

import asyncio
from typing import Any

import orjson

from bench.client import Connection, Load, LoadError
from bench.peer import claim_output, serve

_AT_ONCE = 32
_OPEN_S = 60.0  # for one stream


class Idle(asyncio.Protocol):
    """One stream, open once the head of its answer and the first bytes after it have come."""

    def __init__(self, request: bytes) -> None:
        self._request, self._head = request, b""
        self._transport: asyncio.BaseTransport | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self.opened.done():
            return
        self._head += data
        head, end, body = self._head.partition(b"\r\n\r\n")
        if end and head[9:12] != b"200":
            self.opened.set_exception(LoadError(f"a stream was refused: {self._head[:300]!r}"))
        elif body:
            self._head = b""
            self.opened.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.closed = True
        if not self.opened.done():
            self.opened.set_exception(LoadError(f"the API closed a stream: {exc}"))

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.close()


class Streams(Load):
    """Tasks and the streams open on them."""

    def __init__(self, host: str, port: int, key: str) -> None:
        super().__init__(host, port, key)
        self._ids: list[str] = []
        self._open: list[Idle] = []

    async def submit(self, envelope: dict[str, Any], count: int) -> None:
        """Have tasks that stay queued. Raises: LoadError."""
        loop, body, left = asyncio.get_running_loop(), orjson.dumps(envelope), count

        async def place() -> None:
            nonlocal left
            connection = (await loop.create_connection(Connection, self._host, self._port))[1]
            while left > 0:
                left -= 1
                status, answer = await connection.exchange(self._post("/v1/tasks", body))
                if status != 202:
                    raise LoadError(f"submit: {status} {answer[:300]!r}")
                self._ids.append(str(orjson.loads(answer)["id"]))
            connection.close()

        await asyncio.gather(*(place() for _ in range(min(_AT_ONCE, count))))

    async def open(self, count: int) -> int:
        """Open streams until there are so many, each on a task of its own. Raises: LoadError, TimeoutError."""
        loop = asyncio.get_running_loop()
        wanted = iter(range(len(self._open), count))

        async def place() -> None:
            for number in wanted:
                request = self._get(f"/v1/tasks/{self._ids[number]}/events")
                pair = await loop.create_connection(lambda: Idle(request), self._host, self._port)  # noqa: B023
                self._open.append(pair[1])
                async with asyncio.timeout(_OPEN_S):
                    await pair[1].opened

        await asyncio.gather(*(place() for _ in range(_AT_ONCE)))
        return self.count()

    def count(self) -> int:
        """Return how many are open."""
        return sum(not one.closed for one in self._open)

    def close(self) -> None:
        """Leave all."""
        for one in self._open:
            one.close()
        self._open.clear()


async def main() -> None:
    """Answer commands."""
    answers = claim_output()
    streams: Streams | None = None

    async def handle(command: dict[str, Any]) -> Any:
        nonlocal streams
        if command["do"] == "submit":
            streams = Streams(command["host"], command["port"], command["key"])
            return await streams.submit(command["envelope"], command["count"])
        if streams is None:
            raise ValueError("no tasks were submitted")
        if command["do"] == "open":
            return await streams.open(command["count"])
        if command["do"] == "close":
            return streams.close()
        return streams.count()

    await serve(answers, handle)


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
