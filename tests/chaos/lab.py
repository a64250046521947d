"""A deployment to break: real Postgres and Valkey, processes that can be killed one by one.

The engine is the deterministic one unless said otherwise: what an undisturbed run would have answered is known
beforehand, to the letter, so every fault test ends with the same questions (`Run.check`). On vLLM rounding
differs with the batch, so there the same questions are asked of the stream and the row alone (`Run.check_promises`).
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

from cli.stack.ports import free_port
from cli.stack.postgres import PostgresServer
from cli.stack.process import Program, signal_group, spawn
from cli.stack.valkey import ValkeyServer
from core.lanes import LengthBounds
from migrations import upgrade
from services.register import create_key, register_model
from tests.chaos.follower import Follower
from tests.support.demo_model import demo_model
from tests.support.seeds import TARIFF, opened
from tests.support.waiting import eventually
from workers.deterministic import DeterministicEngine
from workers.deterministic_output import make_model
from workers.engine import GenerateRequest

MODEL = "deterministic"
FINAL = {"completed", "failed", "incomplete", "cancelled", "expired"}
DEFAULTS = {
    "HEADRACE_ENGINE": "deterministic",
    "HEADRACE_MAX_NUM_SEQS": "32",
    "HEADRACE_DETERMINISTIC_STEP_S": "0.05",
    "HEADRACE_LEASE_S": "1.5",
    "HEADRACE_TICK_S": "0.2",
    "HEADRACE_LEADER_LEASE_S": "1.5",
    "HEADRACE_DRAIN_S": "1.0",
    "HEADRACE_ENGINE_CHECK_S": "0.5",
    "HEADRACE_KEEPALIVE_S": "1.0",
    "HEADRACE_KEY_PEPPER": "pepper",
    "HEADRACE_SECRETS_DIR": "/nonexistent",
}


@dataclass
class Child:
    """A process of the deployment."""

    program: Program
    process: subprocess.Popen[bytes]

    def log(self) -> str:
        """All it wrote."""
        return self.program.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Signal it alone."""
        self.process.send_signal(number)

    async def ended(self, within_s: float = 20.0) -> int:
        """Wait for its end; return the exit code."""
        await eventually(lambda: self.process.poll() is not None, within_s, f"{self.program.name} ended")
        return int(self.process.returncode)

    async def kill(self) -> None:
        """Kill it as the kernel would, children of its own excepted."""
        self.process.kill()
        await self.ended()


@dataclass
class Lab:
    """See the module. Start parts by `start_*`; all end with the lab."""

    folder: Path
    postgres: PostgresServer
    valkey: ValkeyServer
    settings: dict[str, str] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    api_url: str = ""
    api_key: str = ""
    model: str = MODEL
    ready_within_s: float = 30.0
    run: "Run | None" = None  # the newest: what keeps the workers busy

    @property
    def environment(self) -> dict[str, str]:
        """Of every process."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        stores = {
            "HEADRACE_DATABASE_URL": self.postgres.url,
            "HEADRACE_BROKER_URL": self.valkey.url_of(0),
            "HEADRACE_STREAMS_URL": self.valkey.url_of(1),
            "HEADRACE_FILES_URL": str(self.folder / "files"),
        }
        return kept | DEFAULTS | stores | {"HEADRACE_MODEL": self.model} | self.settings

    async def prepare(self, model_path: Path | None = None) -> None:
        """Schema, key and model; without a path, the deterministic engine's."""
        upgrade(self.postgres.url)
        if model_path is None:
            model_path = self.folder / "model"
            make_model(model_path)
        async with opened(self.postgres.url) as database:
            pepper = DEFAULTS["HEADRACE_KEY_PEPPER"].encode()
            self.api_key = await create_key(database, tenant="default", name="lab", pepper=pepper)
            await register_model(
                database,
                name=self.model,
                path=str(model_path),
                max_model_len=4096,
                default_max_tokens=None,
                bounds=LengthBounds(),
                tariff=TARIFF,
                tenant="default",
            )

    async def start(
        self,
        name: str,
        *words: str,
        ready: str = '"event":"ready"',
        prefix: Sequence[str] = (),
        **settings: str,
    ) -> Child:
        """Start a process and wait until it says that it is ready."""
        log = self.folder / f"{name}-{len(self.children)}.log"
        program = Program(
            name=name,
            argv=[*prefix, sys.executable, "-m", "cli", *words],
            log=log,
            cwd=Path.cwd(),
            env=self.environment | settings,
        )
        child = Child(program, spawn(program))
        self.children.append(child)

        def is_ready() -> bool:
            assert child.process.poll() is None, f"{name} ended:\n{child.log()[-3000:]}"
            return ready in child.log()

        await eventually(is_ready, self.ready_within_s, f"{name} ready")
        return child

    def child(self, name: str) -> Child:
        """The newest process of that name."""
        return next(child for child in reversed(self.children) if child.program.name == name)

    async def start_api(self) -> Child:
        """Start an API; the first one is what clients talk to."""
        port = free_port()
        child = await self.start("api", "api", "--port", str(port), ready="Uvicorn running on")
        self.api_url = self.api_url or f"http://127.0.0.1:{port}"
        return child

    async def restart_api(self) -> Child:
        """Start an API where the first one was."""
        port = self.api_url.rpartition(":")[2]
        return await self.start("api", "api", "--port", port, ready="Uvicorn running on")

    async def start_control(self) -> Child:
        """Start a control process."""
        return await self.start("control", "control")

    async def start_worker(self, name: str, prefix: Sequence[str] = (), **settings: str) -> Child:
        """Start a worker; ready when it consumes."""
        settings = {"HEADRACE_WORKER_NAME": name, **settings}
        return await self.start(name, "worker", ready=f"{name} ready.", prefix=prefix, **settings)

    @asynccontextmanager
    async def keeping_worker(self, name: str) -> AsyncIterator[None]:
        """Start a worker again whenever it ended, as an orchestrator does."""

        async def keep() -> None:
            while True:
                if self.child(name).process.poll() is not None:
                    await self.start_worker(name)
                await asyncio.sleep(0.1)

        keeping = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def post(self, path: str) -> httpx.Response:
        """Ask the API."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        async with httpx.AsyncClient(base_url=self.api_url, headers=headers, timeout=30) as http:
            return await http.post(path)

    def stop(self) -> None:
        """End everything."""
        for child in reversed(self.children):
            with suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGCONT)
            signal_group(child.process.pid, signal.SIGKILL)
            child.process.wait()

    async def running_on(self, worker: str, at_least: int = 5, emitted: int = 3) -> None:
        """Wait until a worker runs that many tasks: the moment to break something.

        `emitted`: each of them has streamed so many events. Tasks last seconds, and so may it take to submit them, or
        to look, on a busy machine: whenever a run has too few left for the moment to come, it goes on with more.
        """
        statement = "SELECT id FROM tasks WHERE state = 'in_progress' AND worker = :worker"

        def holds() -> bool:
            running = [row.id for row in self.query(statement, worker=worker)]
            if len(running) < at_least:
                return False
            with self.valkey.client(1) as client:
                return sum(int(client.xlen(f"hr:s:{task}")) > emitted for task in running) >= at_least

        deadline = time.monotonic() + 60.0
        while not holds():
            assert time.monotonic() < deadline, f"{worker} runs {at_least} tasks: not within 60 s"
            if self.run is not None and self.run.left < at_least:
                await self.run.go_on()
            await asyncio.sleep(0.02)

    def cut_off_broker(self, child: Child) -> None:
        """Break a process's connections to Valkey, once."""
        ports = {
            each.laddr.port for each in psutil.Process(child.process.pid).net_connections() if each.raddr
        }
        with self.valkey.client(0) as client:
            for connection in client.client_list():
                if int(connection["addr"].rpartition(":")[2]) in ports:
                    client.client_kill_filter(_id=connection["id"])

    def query(self, statement: str, **values: Any) -> list[Any]:
        """Ask Postgres."""
        engine = sa.create_engine(sa.make_url(self.postgres.url).set(drivername="postgresql+psycopg"))
        try:
            with engine.begin() as connection:
                result = connection.execute(sa.text(statement), values)
                return list(result) if result.returns_rows else []
        finally:
            engine.dispose()


def bodies(count: int, max_tokens: int = 40, model: str = MODEL) -> list[dict[str, Any]]:
    """Requests that differ, of differing length."""
    return [
        {
            "model": model,
            "messages": [{"role": "user", "content": f"Question {i}: tell me about mill number {i}."}],
            "max_tokens": max_tokens // 2 + i * 7 % max_tokens,
        }
        for i in range(count)
    ]


async def expected(folder: Path, wanted: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(text, prompt tokens, output tokens) that an undisturbed run answers."""
    engine = DeterministicEngine(MODEL, folder / "model", max_num_seqs=1000, step_s=0)
    await engine.start()

    async def one(number: int, body: dict[str, Any]) -> tuple[str, int, int]:
        request = GenerateRequest(f"r{number}", "/v1/chat/completions", body, body["max_tokens"])
        text = ""
        async for output in engine.generate(request):
            text += "".join(delta.text for delta in output.deltas)
            usage = output.usage
        return text, usage.prompt_tokens, usage.output_tokens

    try:
        return list(await asyncio.gather(*(one(i, body) for i, body in enumerate(wanted))))
    finally:
        await engine.stop()


class Run:
    """Tasks sent through a fault, each followed live by a client that comes back whenever it is cut off."""

    def __init__(self, lab: Lab, count: int = 100, max_tokens: int = 40, priority: str = "standard") -> None:
        self.lab = lab
        self.bodies = bodies(count, max_tokens, lab.model)
        self.priority = priority
        self.followers: list[Follower] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._max_tokens = max_tokens
        lab.run = self

    @property
    def ids(self) -> list[str]:
        """Accepted ids."""
        return [follower.task_id for follower in self.followers]

    @property
    def left(self) -> int:
        """Tasks whose end no follower has seen."""
        return sum(not follower.ended for follower in self.followers)

    async def begin(self, at_once: int = 20) -> None:
        """Submit all, so many at a time, and follow each."""
        await self._begin(self.bodies, at_once)

    async def go_on(self, count: int = 20) -> None:
        """Submit so many more, and follow them as well."""
        asked = len(self.bodies)
        more = bodies(asked + count, self._max_tokens, self.lab.model)[asked:]
        self.bodies += more
        await self._begin(more, count)

    async def _begin(self, wanted: Sequence[dict[str, Any]], at_once: int) -> None:
        async with httpx.AsyncClient(
            base_url=self.lab.api_url,
            headers=self._headers(),
            timeout=30,
            limits=httpx.Limits(max_connections=at_once),
        ) as http:
            begun = await asyncio.gather(*(self._submit(http, body) for body in wanted))
        self.followers += begun
        self._tasks += [asyncio.create_task(follower.follow()) for follower in begun]

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.lab.api_key}"}

    async def _submit(self, http: httpx.AsyncClient, body: dict[str, Any]) -> Follower:
        envelope = {"url": "/v1/chat/completions", "body": body, "priority": self.priority}
        answer = await http.post("/v1/tasks", json=envelope)
        assert answer.status_code == 202, answer.text
        return Follower(self.lab, answer.json()["id"])

    async def more_deltas(self, count: int) -> None:
        """Wait until followers saw so many more deltas than now, or all of them their ends."""

        def deltas() -> int:
            return sum(event["type"] == "task.delta" for f in self.followers for event in f.events)

        goal = deltas() + count
        await eventually(
            lambda: deltas() >= goal or all(f.ended for f in self.followers), 30.0, "more deltas"
        )

    async def finish(self, within_s: float = 60.0, *, streams_may_expire: bool = False) -> None:
        """Wait until every follower saw the end of its task."""
        for follower in self.followers:
            follower.may_expire = streams_may_expire
        try:
            async with asyncio.timeout(within_s):
                await asyncio.gather(*self._tasks)
        except TimeoutError:
            open_ = [follower.task_id for follower in self.followers if not follower.ended]
            rows = self.lab.query(
                "SELECT id, state, attempt, published_at, lease_expires_at, worker, failure FROM tasks"
                " WHERE id = ANY(:ids)",
                ids=open_[:5],
            )
            raise AssertionError(f"{len(open_)} streams did not end within {within_s} s: {rows}") from None

    async def check(
        self,
        allowed: Mapping[str, int] | None = None,
        max_attempts_seen: int = 5,
        *,
        streams_may_expire: bool = False,
    ) -> None:
        """Every accepted id ended once, with one usage record and ledger entry, its stream whole and equal
        to an undisturbed run. `allowed`: how many may end in another state than completed.
        `streams_may_expire`: Redis lost its data, so a stream may answer 410; responses are still whole.
        """
        answers = await expected(self.lab.folder, self.bodies)
        rows = self.check_promises(allowed, max_attempts_seen, streams_may_expire=streams_may_expire)
        for follower, (text, prompt, output) in zip(self.followers, answers, strict=True):
            row = rows[follower.task_id]
            if row.state == "completed":
                assert answer_of(row) == text, f"{row.id}: response differs (attempt {row.attempt})"
                assert follower.expired or follower.text == text, follower.difference(text)
                assert (row.usage_prompt_tokens, row.usage_output_tokens) == (prompt, output), row.id

    def check_promises(
        self,
        allowed: Mapping[str, int] | None = None,
        max_attempts_seen: int = 5,
        *,
        streams_may_expire: bool = False,
    ) -> dict[str, Any]:
        """As `check` without knowing the answers: what was streamed is the answer, whatever that is.

        Return the rows by id.
        """
        rows = {
            row.id: row
            for row in self.lab.query(
                "SELECT t.*, p.response, l.cost_usd_micros AS cost, l.output_tokens AS billed"
                " FROM tasks t JOIN task_payloads p ON p.task_id = t.id"
                " JOIN ledger_entries l ON l.task_id = t.id WHERE t.id = ANY(:ids)",
                ids=self.ids,
            )
        }
        assert set(rows) == set(self.ids), "each task has one row, one payload and one ledger entry"
        states = Counter(row.state for row in rows.values())
        assert set(states) <= FINAL, states
        others = {state: count for state, count in states.items() if state != "completed"}
        assert all(count <= (allowed or {}).get(state, 0) for state, count in others.items()), states
        for follower in self.followers:
            row = rows[follower.task_id]
            if not (streams_may_expire and follower.expired):
                follower.check(row.state)
            if row.state == "completed":
                assert row.billed == row.usage_output_tokens
                assert follower.expired or follower.text == answer_of(row), follower.difference(
                    answer_of(row)
                )
            assert row.attempt <= max_attempts_seen, (row.id, row.attempt)
        return rows


def answer_of(row: Any) -> str:
    """The text of a stored response."""
    return str(json.loads(row.response)["choices"][0]["message"]["content"])


def new_lab(folder: Path, *, durable: bool = False, **settings: str) -> Lab:
    """Stores of their own, started; the caller stops the lab and them."""
    postgres = PostgresServer(folder / "postgres", None, "test password", durable=durable)
    valkey = ValkeyServer(folder / "valkey", None, "test password", durable=durable)
    postgres.start()
    valkey.start()
    return Lab(folder, postgres, valkey, settings)


@asynccontextmanager
async def vllm_lab(folder: Path, **settings: str) -> AsyncIterator[Lab]:
    """A deployment on vLLM and the demo model, with one worker `w1`; gone with the context."""
    lab = new_lab(
        folder, HEADRACE_ENGINE="vllm", HEADRACE_LEASE_S="3", TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1"
    )
    lab.settings |= settings
    lab.model, lab.ready_within_s = "smollm2", 180.0
    try:
        await lab.prepare(demo_model())
        await asyncio.gather(lab.start_api(), lab.start_control())
        await lab.start_worker("w1")
        yield lab
    finally:
        lab.stop()
        lab.valkey.stop()
        lab.postgres.stop()
