"""The load of batch work and people on one stack: places that are never empty, and arrivals at given moments.

Like `bench.client` a process of its own (`python -m bench.mixed_client`) that takes frames apart when a stream
has ended; it notes when bytes came, so that tokens can be told by time. A person's wait counts from the moment
of the schedule, whether or not the client was late.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from bench.client import Connection, Load, LoadError
from bench.peer import claim_output, serve

_KEPT_S = 2.0  # below every server's keep-alive
_DELTA = b"event: task.delta\n"
_URL = "/v1/chat/completions"
_FAILED = (b"event: task.failed\n", b"event: task.expired\n", b"event: task.incomplete\n")


class TimedConnection(Connection):
    """A connection that knows when each byte came."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[tuple[int, float]] = []  # (bytes so far, moment)
        self.used_at = 0.0

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self.marks.append(((self.marks[-1][0] if self.marks else 0) + len(data), time.perf_counter()))
        super().data_received(data)

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """As the base's."""
        self.marks = []
        answer = await super().exchange(request)
        self.used_at = time.perf_counter()
        return answer


@dataclass(slots=True)
class Streamed:
    """One task: when its chunks came, from the start of the run, and its tokens."""

    asked_s: float
    tokens: int = 0
    chunks_s: list[float] = field(default_factory=list)


def chunk_moments(body: bytes, marks: Sequence[tuple[int, float]]) -> list[float]:
    """When each text chunk of a stream began to arrive. `marks` count the answer's head too."""
    head = (marks[-1][0] if marks else 0) - len(body)
    sizes = [size for size, _ in marks]
    return [marks[bisect_left(sizes, head + at + 1)][1] for at in _places(body, _DELTA)]


def _places(text: bytes, part: bytes) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


def used_tokens(body: bytes) -> int:
    """Output tokens of an ended stream; 0 for a task that was cancelled before it began. Raises: LoadError."""
    if any(kind in body for kind in _FAILED):
        raise LoadError(f"a task failed: {body[-300:]!r}")
    ends = [body.rfind(b"event: task.%s\ndata: " % kind) for kind in (b"completed", b"cancelled")]
    if max(ends) < 0:
        raise LoadError(f"a stream broke off: {body[-300:]!r}")
    data = body[max(ends) :].split(b"\n", 2)[1].removeprefix(b"data: ")
    return int((orjson.loads(data).get("usage") or {}).get("completion_tokens") or 0)


class Mixed(Load):
    """One run."""

    def __init__(self, host: str, port: int, key: str) -> None:
        super().__init__(host, port, key)
        self._began = 0.0
        self._open: set[str] = set()  # batch tasks
        self._idle: list[TimedConnection] = []

    async def run_mixed(
        self, batch: Sequence[dict[str, Any]], people: Sequence[tuple[float, dict[str, Any]]],
        *, in_flight: int, seconds: float, priorities: tuple[str, str],
    ) -> tuple[list[Streamed], list[Streamed]]:  # fmt: skip
        """Run for so long, wait for the people, then cancel what batch work is open. Raises: LoadError."""
        self._began = time.perf_counter()
        waiting = iter(batch)
        stop = self._began + seconds
        done: list[Streamed] = []

        async def place() -> None:
            while time.perf_counter() < stop and (body := next(waiting, None)) is not None:
                done.append(await self.one_task(body, priorities[0], time.perf_counter(), self._open))

        async def person(at_s: float, body: dict[str, Any]) -> Streamed:
            due = self._began + at_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            return await self.one_task(body, priorities[1], due, set())

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(in_flight, len(batch))):
                    group.create_task(place())
                answers = [group.create_task(person(at_s, body)) for at_s, body in people]
                await asyncio.sleep(seconds)
                await self.cancel_open()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            for connection in self._idle:
                connection.close()
        return done, [answer.result() for answer in answers]

    async def one_task(
        self, body: dict[str, Any], priority: str, asked: float, open_tasks: set[str]
    ) -> Streamed:
        """Submit and follow to the end. Raises: LoadError."""
        connection = await self._connection()
        envelope = orjson.dumps({"url": _URL, "body": body, "priority": priority})
        status, answer = await connection.exchange(self._post("/v1/tasks", envelope))
        if status != 202:
            raise LoadError(f"submit: {status} {answer[:300]!r}")
        task_id = orjson.loads(answer)["id"]
        open_tasks.add(task_id)
        status, stream = await connection.exchange(self._get(f"/v1/tasks/{task_id}/events"))
        open_tasks.discard(task_id)
        if status != 200:
            raise LoadError(f"events: {status} {stream[:300]!r}")
        moments = [moment - self._began for moment in chunk_moments(stream, connection.marks)]
        self._idle.append(connection)
        return Streamed(asked - self._began, used_tokens(stream), moments)

    async def cancel_open(self) -> None:
        """End the batch tasks of this run."""
        connection = await self._connect()
        while self._open:
            for task_id in list(self._open):
                await connection.exchange(self._post(f"/v1/tasks/{task_id}/cancel", b"{}"))
            await asyncio.sleep(0.2)
        connection.close()

    async def _connection(self) -> TimedConnection:
        """One that the API has not closed: it does so after some idle seconds."""
        while self._idle:
            connection = self._idle.pop()
            if time.perf_counter() - connection.used_at < _KEPT_S:
                return connection
            connection.close()
        return await self._connect()

    async def _connect(self) -> TimedConnection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(TimedConnection, self._host, self._port))[1]


async def _handle(command: dict[str, Any]) -> Any:
    batch, people = await Mixed(command["host"], command["port"], command["key"]).run_mixed(
        command["batch"],
        [(at_s, body) for at_s, body in command["people"]],
        in_flight=command["in_flight"],
        seconds=command["seconds"],
        priorities=(command["priorities"][0], command["priorities"][1]),
    )
    return {"batch": [asdict(one) for one in batch], "people": [asdict(one) for one in people]}


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(claim_output(), _handle))
