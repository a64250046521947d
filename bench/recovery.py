"""`headrace bench recovery`: from kill -9 of one of two workers to the next token of each of its tasks.

The stack's own worker is the warm peer; the one that is killed is a process of the benchmark's. Tasks are submitted,
every one has streamed, and at a moment chosen at random the victim's main process is killed. Each task is followed
over HTTP; the time counts from the kill to the first text of the attempt that took over.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import orjson

from bench import machine
from bench.harness import Result, Row, row
from bench.peer import PeerError, die_with_parent, log_tail
from bench.prompts import body, chat_messages
from bench.stack import READY_S, Stack
from runtime.chat_template import ModelTokenizer

NAME = "recovery"
LEASE_S = 3.0
PROMPT_TOKENS = 64
FINAL = frozenset({"task.completed", "task.failed", "task.incomplete", "task.cancelled", "task.expired"})


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    kills: int
    in_flight: int
    output_tokens: int
    within_s: float  # the kill falls at random into this time after every task has streamed


FULL = Plan(kills=10, in_flight=32, output_tokens=128, within_s=2.0)
QUICK = Plan(kills=1, in_flight=16, output_tokens=64, within_s=0.2)


@dataclass(slots=True)
class Followed:
    """One task as its follower saw it."""

    task_id: str
    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # (loop time, event)
    response: dict[str, Any] = field(default_factory=dict)  # what a poll says after the end
    streaming: asyncio.Event = field(default_factory=asyncio.Event)  # text has come

    def add(self, at: float, event: dict[str, Any]) -> None:
        """Take an event."""
        self.events.append((at, event))
        if event["type"] == "task.delta":
            self.streaming.set()

    @property
    def ended(self) -> bool:
        """Whether the final event has come."""
        return bool(self.events) and self.events[-1][1]["type"] in FINAL

    def text(self, until: float = float("inf")) -> str:
        """The text that had come by then."""
        return "".join(
            choice["delta"].get("content", "")
            for at, event in self.events
            if at <= until and event["type"] == "task.delta"
            for choice in event["choices"]
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What one task shows about a kill."""

    recovery_s: float | None  # None: it did not run on the victim
    lost: bool
    duplicated: bool
    prefix_changed: bool


def judge(task: Followed, killed_at: float, output_tokens: int) -> Found:
    """Say what became of a task. Pure."""
    types = Counter(event["type"] for _, event in task.events)
    numbers = [event["sequence"] for _, event in task.events]
    answer = task.response.get("response") or {}
    whole = answer["choices"][0]["message"]["content"] if answer.get("choices") else ""
    takeover = next(
        (at for at, event in task.events if event["type"] == "task.started" and event["attempt"] > 1), None
    )
    recovery_s = None
    if takeover is not None:
        following = (at for at, event in task.events if at >= takeover and event["type"] != "task.started")
        recovery_s = round(next(following) - killed_at, 3)
    return Found(
        recovery_s=recovery_s,
        lost=task.response.get("status") != "completed",
        duplicated=sum(types[kind] for kind in FINAL) != 1
        or any(later != before + 1 for before, later in pairwise(numbers))
        or (answer.get("usage") or {}).get("completion_tokens") != output_tokens,
        prefix_changed=types["task.restarted"] > 0
        or not whole.startswith(task.text(killed_at))
        or task.text() != whole,
    )


class Victim:
    """A worker that is there to be killed."""

    def __init__(self, stack: Stack, number: int) -> None:
        self.name = f"victim-{number}"
        self._log = stack.logs / f"{self.name}.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cli", "worker"],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **stack.environment, "HEADRACE_WORKER_NAME": self.name},
                preexec_fn=die_with_parent,
            )

    async def ready(self) -> None:
        """Wait until it consumes. Raises: PeerError."""
        deadline = time.monotonic() + READY_S
        while f"{self.name} ready." not in self._log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PeerError(f"{self.name} did not start:\n{log_tail(self._log)}")
            await asyncio.sleep(0.1)

    def kill(self) -> None:
        """kill -9 of its main process, and of nothing else: what it started has to see to itself."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


class Client:
    """Submits tasks and follows them."""

    def __init__(self, address: Mapping[str, Any]) -> None:
        self._http = httpx.AsyncClient(
            base_url=f"http://{address['host']}:{address['port']}",
            headers={"Authorization": f"Bearer {address['key']}"},
            timeout=httpx.Timeout(120, pool=None),
            limits=httpx.Limits(max_connections=None),
        )

    async def submit(self, request: dict[str, Any]) -> Followed:
        """Submit one task."""
        answer = await self._http.post("/v1/tasks", json={"url": "/v1/chat/completions", "body": request})
        answer.raise_for_status()
        return Followed(answer.json()["id"])

    async def follow(self, task: Followed) -> None:
        """Follow to the end; then poll once."""
        clock = asyncio.get_running_loop().time
        while not task.ended:
            cursor = task.events[-1][1]["sequence"] if task.events else 0
            url = f"/v1/tasks/{task.task_id}/events?starting_after={cursor}"
            with suppress(httpx.TransportError):
                async with self._http.stream("GET", url) as answer:
                    answer.raise_for_status()
                    async for line in answer.aiter_lines():
                        if line.startswith("data: "):
                            task.add(clock(), orjson.loads(line[6:]))
        task.response = (await self._http.get(f"/v1/tasks/{task.task_id}")).json()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark."""
    plan = QUICK if quick else FULL
    say("starting the stack")
    with Stack(engine, {"HEADRACE_LEASE_S": str(LEASE_S)}) as stack:
        rounds = asyncio.run(_rounds(plan, stack, say))
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, rounds, engine),
        arms={"lease_s": LEASE_S, "plan": asdict(plan), "rounds": [list(map(asdict, one)) for one in rounds]},
    )


async def _rounds(plan: Plan, stack: Stack, say: Callable[[str], None]) -> list[list[Found]]:
    tokenizer = ModelTokenizer(stack.model_path)
    client, chance = Client(stack.address), random.Random(NAME)
    rounds = list[list[Found]]()
    try:
        for number in range(plan.kills):
            requests = [
                body(stack.model, chat_messages(tokenizer, PROMPT_TOKENS, (number, at)), plan.output_tokens)
                for at in range(plan.in_flight)
            ]
            victim = Victim(stack, number)
            try:
                await victim.ready()
                rounds.append(await _round(plan, client, victim, requests, chance.uniform(0, plan.within_s)))
            finally:
                victim.kill()
            times = [found.recovery_s for found in rounds[-1] if found.recovery_s is not None]
            worst = f", the last after {max(times):.2f} s" if times else ""
            say(f"kill {number + 1}: {len(times)} of {plan.in_flight} tasks moved{worst}")
    finally:
        await client.close()
    return rounds


async def _round(
    plan: Plan, client: Client, victim: Victim, requests: Sequence[dict[str, Any]], after_s: float
) -> list[Found]:
    tasks = await asyncio.gather(*map(client.submit, requests))
    following = [asyncio.create_task(client.follow(task)) for task in tasks]
    await asyncio.gather(*(task.streaming.wait() for task in tasks))
    await asyncio.sleep(after_s)
    killed_at = asyncio.get_running_loop().time()
    victim.kill()
    await asyncio.gather(*following)
    return [judge(task, killed_at, plan.output_tokens) for task in tasks]


def rows(plan: Plan, rounds: Sequence[Sequence[Found]], engine: str) -> list[Row]:
    """Build the rows; the spread is that of the kills."""
    kind = "" if engine == "vllm" else f"{engine} engine, no model; "
    times = [[one.recovery_s for one in found if one.recovery_s is not None] for found in rounds]
    hit = [sorted(of) for of in times if of]
    if not hit:
        raise ValueError("no kill hit a running task")
    note = (
        f"{kind}{len(rounds)} kills of one of two workers, {plan.in_flight} tasks in flight, "
        f"{sum(map(len, hit))} of them on the victim, lease {LEASE_S:g} s, {PROMPT_TOKENS} in / "
        f"{plan.output_tokens} out"
    )
    every = [value for of in hit for value in of]
    counts = {
        "lost": "did not complete",
        "duplicated": "two ends, a gap or repeat in the stream, or other than the tokens asked for",
        "prefix_changed": "streamed text voided, or differing from the answer",
    }
    return [
        row("recovery_s_median", [of[len(of) // 2] for of in hit], "s", "≤ 5", note),
        Row(
            "recovery_s_max", max(every), min(every), max(every), "s", "≤ 5", f"{kind}the slowest task of all"
        ),
        *(_none(name, f"{kind}{what}", rounds) for name, what in counts.items()),
    ]


def _none(name: str, what: str, rounds: Sequence[Sequence[Found]]) -> Row:
    by_kill = [sum(getattr(one, name) for one in found) for found in rounds]
    note = f"of {sum(map(len, rounds))} tasks: {what}"
    return Row(name, sum(by_kill), min(by_kill), max(by_kill), "tasks", "≤ 0", note)
