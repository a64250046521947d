"""The load of an open loop: tasks are submitted at given moments, whatever became of the ones before.

A process of its own (`python -m bench.open_client`) that only submits: when tasks began and ended is read from
their rows afterwards, so that nothing is measured by a client that is late. One that is refused may obey: it asks
again once, after the time that it was told.
"""

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from bench.client import Connection, Load
from bench.peer import claim_output, serve

_URL = "/v1/chat/completions"
_KEPT_S = 2.0  # the server closes what is idle for longer than 5 s


@dataclass(slots=True)
class Submitted:
    """What became of one submission."""

    number: int
    status: int
    submit_s: float  # of the (last) request
    task_id: str = ""
    estimated_wait_s: float | None = None
    refused: int = 0  # times
    told_s: float = 0.0  # the first Retry-After


class Opened(Load):
    """Submissions of one key."""

    def __init__(self, host: str, port: int, key: str) -> None:
        super().__init__(host, port, key)
        self._idle: list[tuple[float, HeadConnection]] = []

    async def submit(self, number: int, envelope: dict[str, Any]) -> tuple[Submitted, float]:
        """Send one; return what became of it and the Retry-After."""
        connection = await self._connection()
        began = time.perf_counter()
        status, answer = await connection.exchange(self._post("/v1/tasks", orjson.dumps(envelope)))
        took_s = time.perf_counter() - began
        self._idle.append((time.monotonic(), connection))
        one = Submitted(number, status, took_s)
        if status == 202:
            task = orjson.loads(answer)
            one.task_id, one.estimated_wait_s = task["id"], task.get("estimated_wait_s")
        return one, connection.retry_after_s

    async def _connection(self) -> "HeadConnection":
        """One that was used a moment ago, which the server keeps open, or a new one."""
        while self._idle:
            used_at, connection = self._idle.pop()
            if time.monotonic() - used_at < _KEPT_S:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(HeadConnection, self._host, self._port))[1]

    def close(self) -> None:
        """Close all connections."""
        for _, connection in self._idle:
            connection.close()


class HeadConnection(Connection):
    """A connection that keeps the Retry-After of its newest answer."""

    retry_after_s = 0.0

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        found = data.lower().partition(b"\r\nretry-after:")[2].partition(b"\r\n")[0]
        self.retry_after_s = float(found) if found else self.retry_after_s
        super().data_received(data)


async def run(command: dict[str, Any]) -> list[Submitted]:
    """Submit everything in its time; `patience_s`: nobody asks again after so long from the start."""
    clients = [Opened(command["host"], command["port"], key) for key in command["keys"]]
    began, patience_s = time.perf_counter(), float(command.get("patience_s", 0.0))

    async def one(number: int, entry: dict[str, Any]) -> Submitted:
        await asyncio.sleep(max(0.0, began + entry["at_s"] - time.perf_counter()))
        envelope = {"url": _URL, "body": entry["body"], "priority": entry["priority"]}
        if entry.get("deadline_s"):
            envelope["deadline_s"] = entry["deadline_s"]
        client: Opened = clients[int(entry["key"])]
        first, after_s = await client.submit(number, envelope)
        if first.status == 202:
            return first
        first.refused, first.told_s = 1, after_s
        if time.perf_counter() - began + after_s > patience_s:
            return first
        await asyncio.sleep(after_s)
        second, _ = await client.submit(number, envelope)
        second.refused, second.told_s = 1 + (second.status != 202), after_s
        return second

    try:
        arrivals: list[dict[str, Any]] = command["arrivals"]
        return list(await asyncio.gather(*(one(number, entry) for number, entry in enumerate(arrivals))))
    finally:
        for client in clients:
            client.close()


async def _handle(command: dict[str, Any]) -> Any:
    return [asdict(one) for one in await run(command)]


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(claim_output(), _handle))
