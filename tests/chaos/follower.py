"""A client that follows one task to its end, however often its connection breaks."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx

from tests.support.waiting import eventually_async

if TYPE_CHECKING:
    from tests.chaos.lab import Lab

FINAL_TYPES = {f"task.{state}" for state in ("completed", "failed", "incomplete", "cancelled", "expired")}


class Follower:
    """Keeps what it saw; resumes after the last sequence number it saw."""

    def __init__(self, lab: "Lab", task_id: str) -> None:
        self.lab, self.task_id = lab, task_id
        self.events: list[dict[str, Any]] = []
        self.arrived: list[float] = []  # loop time of each event
        self.reconnects = 0
        self.may_expire = False  # Redis lost its data: the stream may be gone, and the task is polled
        self.expired = False

    @property
    def ended(self) -> bool:
        """Whether the final event arrived."""
        return bool(self.events) and self.events[-1]["type"] in FINAL_TYPES

    @property
    def text(self) -> str:
        """What the deltas add up to, after the last restart."""
        parts: list[str] = []
        for event in self.events:
            if event["type"] == "task.restarted":
                parts.clear()
            elif event["type"] == "task.delta":
                parts += [choice["delta"].get("content", "") for choice in event["choices"]]
        return "".join(parts)

    async def follow(self) -> None:
        """Follow to the final event."""
        headers = {"Authorization": f"Bearer {self.lab.api_key}"}
        async with httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(5, pool=None)) as http:
            while not (self.ended or self.expired):
                try:
                    await self._read(http)
                except httpx.HTTPError:
                    self.reconnects += 1
                if not self.ended:
                    await asyncio.sleep(0.1)
            if self.expired:
                await eventually_async(lambda: self._is_final(http), 90.0, f"{self.task_id} is final")

    async def _is_final(self, http: httpx.AsyncClient) -> bool:
        answer = await http.get(f"{self.lab.api_url}/v1/tasks/{self.task_id}")
        return answer.status_code == 200 and f"task.{answer.json()['status']}" in FINAL_TYPES

    async def _read(self, http: httpx.AsyncClient) -> None:
        cursor = self.events[-1]["sequence"] if self.events else 0
        url = f"{self.lab.api_url}/v1/tasks/{self.task_id}/events?starting_after={cursor}"
        async with http.stream("GET", url) as answer:
            if answer.status_code in (503, 204):
                return
            if answer.status_code == 410 and self.may_expire:
                self.expired = True
                return
            assert answer.status_code == 200, (answer.status_code, await answer.aread())
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    self.events.append(json.loads(line[6:]))
                    self.arrived.append(asyncio.get_running_loop().time())

    def difference(self, text: str) -> str:
        """Where the streamed text leaves the right one, and the events around it."""
        pairs = enumerate(zip(self.text, text, strict=False))
        same = next((i for i, (ours, right) in pairs if ours != right), min(len(self.text), len(text)))
        told = "\n".join(json.dumps(event) for event in self.events)
        return f"{self.task_id}: after {text[:same]!r} not {text[same:]!r} but {self.text[same:]!r}\n{told}"

    def check(self, state: str) -> None:
        """The stream is gapless, ends once, and says what the row says."""
        numbers = [event["sequence"] for event in self.events]
        assert numbers == list(range(1, len(numbers) + 1)), f"{self.task_id}: {numbers}"
        finals = [event["type"] for event in self.events if event["type"] in FINAL_TYPES]
        assert finals == [f"task.{state}"], (self.task_id, finals, state)
