"""Reading server-sent events as a client would."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx


async def read_events(
    http: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events' data; the `id:` and `event:` lines must agree with it."""
    async with http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        block: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                block[name] = value
                continue
            if not block:
                continue
            data = json.loads(block["data"])
            assert block["id"] == str(data["sequence"])
            assert block["event"] == data["type"]
            yield data
            block = {}


def text_of(events: list[dict[str, Any]]) -> str:
    """The text of choice 0 that the events add up to."""
    parts: list[str] = []
    for event in events:
        if event["type"] == "task.restarted":
            parts.clear()
        elif event["type"] == "task.delta":
            parts += [
                choice["delta"].get("content", "") for choice in event["choices"] if choice["index"] == 0
            ]
    return "".join(parts)
