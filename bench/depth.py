"""`headrace bench depth`: does a deep queue make submitting or claiming slower?

A model of its own has N tasks queued; the benchmark is its only worker: a row in `workers`, and for each slot a
message popped from the broker, a claim and a settle as a worker's attempt makes them. API, dispatcher, Postgres and
Valkey are the product's. Then pairs of one submit and one claim are timed. Between two depths the queue is filled up.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from redis import Redis

from bench import machine
from bench.client import Connection, Load
from bench.harness import Result, Row, percentile, row
from bench.prompts import body, chat_messages
from bench.rows_of import Rows
from bench.stack import Stack
from bench.tenants import run_command
from core.lanes import Lane, LengthClass, Priority
from core.pricing import Usage
from core.states import TaskState
from runtime.chat_template import ModelTokenizer
from runtime.resources import open_database
from runtime.settings import Settings
from services.attempt import Holder, claim, settle
from services.workers import describe_worker
from storage.presence import WorkerRow
from storage.records import Ending

NAME = "depth"
MODEL = "bench-depth"
WORKER = "bench-depth"
SLOTS = 64
_STORES = ("database_url", "broker_url", "streams_url", "key_pepper")

_FILL = """
WITH one AS (SELECT * FROM tasks WHERE model = %s AND state = 'queued' ORDER BY id LIMIT 1),
numbers AS (SELECT 'task_' || lpad(to_hex(n), 26, '0') AS id FROM generate_series(%s::bigint, %s::bigint) n),
bodies AS (
  INSERT INTO task_payloads (task_id, request)
  SELECT numbers.id, p.request FROM numbers, one JOIN task_payloads p ON p.task_id = one.id)
INSERT INTO tasks (id, tenant_id, key_id, model, url, priority, length_class, max_attempts, prompt_tokens,
                   max_output_tokens, deadline_at, rank_at)
SELECT numbers.id, tenant_id, key_id, model, url, priority, length_class, max_attempts, prompt_tokens,
  max_output_tokens, deadline_at, now() + interval '1 hour' FROM numbers, one
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    depths: tuple[int, ...]
    pairs: int  # at each depth and round
    rounds: int  # of the shallowest and deepest


FULL = Plan((1_000, 10_000, 100_000), 2_000, 1)
QUICK = Plan((100, 1_000), 60, 1)


@dataclass(frozen=True, slots=True)
class Timed:
    """Times at one depth, in milliseconds."""

    depth: int
    submit_ms: list[float]
    claim_ms: list[float]
    redis_bytes: float  # more than before the queue was filled

    def figures(self) -> dict[str, float]:
        """Return percentiles."""
        return {
            "depth": self.depth,
            "submit_p50_ms": statistics.median(self.submit_ms),
            "submit_p99_ms": percentile(self.submit_ms, 0.99),
            "claim_p50_ms": statistics.median(self.claim_ms),
            "claim_p99_ms": percentile(self.claim_ms, 0.99),
            "redis_bytes_per_task": self.redis_bytes / self.depth,
        }


class Worker:
    """The benchmark as the model's worker."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.database = open_database(_settings(environment), name="bench", plan_once=True)
        self.redis = Redis.from_url(environment["HEADRACE_BROKER_URL"])
        self._prefix = f"{environment.get('HEADRACE_KEY_PREFIX', 'hr')}:q:"
        self._holder = Holder(WORKER, MODEL, 30.0)
        self._held: list[Any] = []

    async def describe(self) -> None:
        """Say that it is there, until cancelled."""
        while True:
            row = WorkerRow(WORKER, MODEL, "bench", "1", "short,medium,long", SLOTS, 0, "ready")
            await describe_worker(self.database, row, None)
            await asyncio.sleep(2.0)

    async def next(self) -> float:
        """End the oldest task where all slots are taken, pop a message and claim its task; time the claim."""
        if len(self._held) >= SLOTS:
            held = self._held.pop(0)
            ending = Ending(held.task_id, held.attempt, TaskState.COMPLETED, Usage(1, 0, 1), response="{}")
            await settle(self.database, [ending])
        while True:
            lane = Lane(MODEL, LengthClass.SHORT, Priority.STANDARD)
            popped = await asyncio.to_thread(self.redis.brpop, [self._prefix + lane.queue], 30)
            if popped is None:
                raise ValueError("no message came within 30 s")
            task_id = orjson.loads(popped[1])["headers"]["id"]
            began = time.perf_counter()
            claimed = await claim(self.database, [task_id], self._holder)
            took = time.perf_counter() - began
            if task_id in claimed:
                self._held.append(claimed[task_id])
                return took * 1000

    def memory(self) -> int:
        """What the server uses."""
        return int(self.redis.info("memory")["used_memory"])


def _settings(environment: Mapping[str, str]) -> Settings:
    """Those of the stack; this process has others."""
    return Settings.model_validate({name: environment[f"HEADRACE_{name.upper()}"] for name in _STORES})


async def _connect(address: Mapping[str, Any]) -> Connection:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(Connection, str(address["host"]), int(address["port"])))[1]


async def _measure(plan: Plan, stack: Stack, say: Callable[[str], None]) -> list[Timed]:
    worker = Worker(stack.environment)
    describing = asyncio.create_task(worker.describe())
    address = stack.address
    load = Load(str(address["host"]), int(address["port"]), str(address["key"]))
    connection = await _connect(address)
    tokenizer = ModelTokenizer(stack.model_path)
    request = body(MODEL, chat_messages(tokenizer, 32, "depth"), 16)
    envelope = orjson.dumps({"url": "/v1/chat/completions", "body": request, "priority": "standard"})

    async def submit() -> float:
        began = time.perf_counter()
        status, answer = await connection.exchange(load._post("/v1/tasks", envelope))
        if status != 202:
            raise ValueError(f"submit: {status} {answer[:200]!r}")
        return (time.perf_counter() - began) * 1000

    found: list[Timed] = []
    made = 1
    try:
        with Rows(stack.environment) as rows_of:
            for _ in range(2 * SLOTS + 40):  # all slots busy and more waiting: what comes next has a backlog
                await submit()
            for _ in range(SLOTS):
                await worker.next()
            for depth in plan.depths:
                before = worker.memory()
                there = rows_of.execute(
                    "SELECT count(*) FROM tasks WHERE model = %s AND state = 'queued'", MODEL
                )[0][0]
                if depth > there:
                    say(f"filling the queue up to {depth}")
                    rows_of.execute(_FILL, MODEL, made, made + depth - there - 1)
                    made += depth - there
                    rows_of.execute("ANALYZE tasks")
                await asyncio.sleep(2.0)  # the counts and what is cached of them catch up
                connection.close()  # filling takes longer than the API keeps an idle one
                connection = await _connect(address)
                memory = worker.memory() - before
                for _ in range(max(20, plan.pairs // 20)):
                    await submit()
                    await worker.next()
                submits, claims = [], []
                for _ in range(plan.pairs):
                    submits.append(await submit())
                    claims.append(await worker.next())
                found.append(Timed(depth, submits, claims, memory))
                one = found[-1].figures()
                say(
                    f"{depth}: submit p50 {one['submit_p50_ms']:.2f} p99 {one['submit_p99_ms']:.2f} ms, claim p50 "
                    f"{one['claim_p50_ms']:.2f} p99 {one['claim_p99_ms']:.2f} ms"
                )
    finally:
        describing.cancel()
        connection.close()
        await worker.database.dispose()
    return found


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark; no engine takes part."""
    plan = QUICK if quick else FULL
    with ExitStack() as opened:
        say("starting the stack")
        settings = {"HEADRACE_MAX_QUEUED_TASKS": "1000000"}
        stack = opened.enter_context(Stack("deterministic", settings))
        run_command(stack, "model", "add", MODEL, "--path", str(stack.model_path))
        found = asyncio.run(_measure(plan, stack, say))
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, [one.figures() for one in found]),
        arms={"plan": asdict(plan), "depths": [one.figures() for one in found]},
    )


def rows(plan: Plan, found: Sequence[dict[str, float]]) -> list[Row]:
    """Build the rows."""
    shallow, deep = found[0], found[-1]
    note = (
        f"{plan.pairs} pairs of a submit over HTTP and a claim at {shallow['depth']:.0f} and {deep['depth']:.0f} "
        f"queued; submit p50 {shallow['submit_p50_ms']:.2f} and {deep['submit_p50_ms']:.2f} ms, claim p50 "
        f"{shallow['claim_p50_ms']:.2f} and {deep['claim_p50_ms']:.2f} ms; low to high: submit and claim"
    )
    return [
        *(
            row(
                f"{share}_ratio_{_short(deep['depth'])}_over_{_short(shallow['depth'])}",
                [deep[f"{what}_{share}_ms"] / shallow[f"{what}_{share}_ms"] for what in ("submit", "claim")],
                "ratio",
                target,
                note if share == "p50" else "",
            )
            for share, target in (("p50", "≤ 1.2"), ("p99", "≤ 1.5"))
        ),
        row(
            "redis_bytes_per_task",
            [deep["redis_bytes_per_task"]],
            "bytes",
            "≤ 1024",
            "used_memory more after filling the queue, a task; a task that waits has no message yet",
        ),
    ]


def _short(depth: float) -> str:
    return f"{depth / 1000:.0f}k" if depth >= 1000 else f"{depth:.0f}"
