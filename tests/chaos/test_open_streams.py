"""Many open streams on one API process: each is a connection, a little memory, and a comment now and then."""

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.chaos.lab import Lab, new_lab

_A_STREAM_BYTES = 100_000  # of the API process; what a stream may cost at most


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """Stores and an API with keep-alives as seldom as they are served, or nearly."""
    lab = new_lab(tmp_path, durable=False)
    lab.settings |= {"HEADRACE_KEEPALIVE_S": "5"}
    try:
        await lab.prepare()
        await lab.start_api()
        yield lab
    finally:
        lab.stop()
        lab.valkey.stop()
        lab.postgres.stop()


class Reader:
    """One open stream, read by hand: a client library would cost more than what is measured."""

    def __init__(self) -> None:
        self.seen = b""
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def open(self, url: str, key: str, path: str) -> None:
        """Connect and begin to read."""
        host, _, port = url.removeprefix("http://").partition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=1 << 14)
        head = f"GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\r\n"
        self._writer.write(head.encode())
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while piece := await self._reader.read(4096):
            self.seen += piece
            self._changed.set()

    async def sees(self, text: bytes, within_s: float) -> None:
        """Wait for a text."""
        try:
            async with asyncio.timeout(within_s):
                while text not in self.seen:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"no {text!r} within {within_s} s after {self.seen[-2000:]!r}") from None

    async def close(self) -> None:
        """Leave."""
        if self._reading is not None:
            self._reading.cancel()
            self._writer.close()


@asynccontextmanager
async def readers(lab: Lab, paths: list[str]) -> AsyncIterator[list[Reader]]:
    """Streams of all these paths, each with its first event."""
    made = [Reader() for _ in paths]
    gate = asyncio.Semaphore(100)

    async def open_(reader: Reader, path: str) -> None:
        async with gate:
            await reader.open(lab.api_url, lab.api_key, path)
            await reader.sees(b"task.queued", 60.0)

    try:
        await asyncio.gather(*(open_(reader, path) for reader, path in zip(made, paths, strict=True)))
        yield made
    finally:
        await asyncio.gather(*(reader.close() for reader in made))


@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.full)])
async def test_idle_streams_are_kept_open_cheaply_and_all_hear_of_the_end(lab: Lab, count: int) -> None:
    count = int(os.environ.get("OPEN_STREAMS", count))  # for measuring by hand
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    api = psutil.Process(lab.child("api").process.pid)
    body = {"model": lab.model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {lab.api_key}"}
    async with httpx.AsyncClient(base_url=lab.api_url, headers=headers, timeout=60) as http:
        # no worker runs: the tasks stay queued
        tasks = [
            (await http.post("/v1/tasks", json={"url": "/v1/chat/completions", "body": body})).json()["id"]
            for _ in range(count // 20)
        ]
        before, opening = api.memory_info().rss, time.monotonic()
        async with readers(lab, [f"/v1/tasks/{task}/events" for task in tasks for _ in range(20)]) as open_:
            opened_s = time.monotonic() - opening
            for reader in open_:
                await reader.sees(b": ka\n", 30.0)
            used = (api.memory_info().rss - before) / count
            cpu_before, began = sum(api.cpu_times()[:2]), time.monotonic()
            for reader in open_:
                reader.seen = b""
            for reader in open_:
                await reader.sees(b": ka\n", 30.0)
            share = (sum(api.cpu_times()[:2]) - cpu_before) / (time.monotonic() - began)
            assert (await http.get("/healthz")).status_code == 200
            ending = time.monotonic()
            for task in tasks:
                await http.post(f"/v1/tasks/{task}/cancel")
            for reader in open_:
                await reader.sees(b"task.cancelled", 30.0)
            told_s = time.monotonic() - ending
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(
        f"{count} streams: opened in {opened_s:.1f} s, {used / 1000:.0f} kB each, idle {share:.2f} cores, "
        f"all told within {told_s:.2f} s"
    )
    assert used < _A_STREAM_BYTES
