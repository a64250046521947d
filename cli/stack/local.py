"""The whole platform on one machine: which processes make it up, in which order, with which settings.

    async with LocalStack(Path("data")) as stack:
        httpx.get(stack.api_url + "/v1/models", headers=stack.auth_headers)

To be used on an event loop in the main thread.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from cli import flower
from cli.stack import model as demo_model
from cli.stack import probes
from cli.stack.folder import SECRETS, DataFolder, RunInfo, rotate
from cli.stack.ports import LOOPBACK, PortClaims
from cli.stack.postgres import PostgresServer
from cli.stack.process import Program
from cli.stack.progress import Progress
from cli.stack.supervisor import Child, Supervisor
from cli.stack.valkey import ValkeyServer
from storage.broker import make_celery

EngineKind = Literal["vllm", "deterministic"]
API_PORT, FLOWER_PORT = 8000, 5555

_DRAIN_MARGIN_S = 15.0  # a worker's SIGKILL comes this long after its drain had to be over


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What may differ between two local stacks."""

    api_port: int | None = None  # None: the last run's or 8000 where free, else any
    flower_port: int | None = None  # None: the last run's or 5555 where free, else any
    engine: EngineKind = "vllm"
    settings: Mapping[str, str] = field(default_factory=dict)  # further HEADRACE_* for the children


class LocalStack:
    """Every process of Headrace under one supervisor on one data folder."""

    def __init__(
        self, data: Path, options: StackOptions | None = None, progress: Progress | None = None
    ) -> None:
        self.folder = DataFolder(data)
        self.options = options or StackOptions()
        self.progress = progress or Progress()
        self.supervisor = Supervisor(self.progress.note, on_spawn=self._children_changed)
        self.model = demo_model.NAME if self.options.engine == "vllm" else "deterministic"
        self._run: RunInfo | None = None
        self._claims = PortClaims()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def run(self) -> RunInfo:
        """What run.json says; after `start` was called."""
        if self._run is None:
            raise RuntimeError("the stack was not started")
        return self._run

    @property
    def api_url(self) -> str:
        """Without a slash at its end."""
        return self.run.api_url

    @property
    def api_key(self) -> str:
        """The key of tenant `default`."""
        return self.run.api_key

    @property
    def auth_headers(self) -> dict[str, str]:
        """For requests to the API."""
        return {"Authorization": f"Bearer {self.api_key}"}

    @property
    def flower_url(self) -> str:
        """Without a slash at its end."""
        return self.run.flower_url

    @property
    def flower_auth(self) -> tuple[str, str]:
        """User and password."""
        return self.run.flower_auth

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by child name; a child that is down is missing."""
        return self.supervisor.pids

    async def start(self) -> None:
        """Start everything and wait until it serves; on failure everything is stopped again.

        Raises: StackBusyError when the folder is in use, StackError when a part doesn't come up.
        """
        self.folder.lock()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop everything in reverse order; idempotent."""
        await self.supervisor.stop()
        if self._run is not None:
            self.folder.remove_run()
        self._claims.release()
        self.folder.unlock()

    async def _start(self) -> None:
        folder, step = self.folder, self.progress.step
        await asyncio.to_thread(folder.end_leftovers)
        for name in SECRETS:
            folder.secret(name)  # children read some of them as files
        ports = self._choose_ports()
        postgres = PostgresServer(
            folder.path / "postgres", ports["postgres"], folder.secret("postgres-password")
        )
        valkey = ValkeyServer(folder.path / "valkey", ports["valkey"], folder.secret("valkey-password"))
        self._run = self._describe(ports, postgres, valkey)

        await _together(self._make_model(), self._start_stores(postgres, valkey))
        with step("model", f"registering {self.model}"):
            await self._once("model-add", *self._registration())
        # In this order, so that they stop in the reverse one: the API outlives the worker's drain.
        children = [
            self._child(
                "control", ("control", "--metrics-port", str(ports["control-metrics"])), probes.said_ready
            ),
            self._child("api", ("api",), probes.http(f"{self.run.api_url}/readyz", 200)),
            self._child(
                "worker",
                ("worker", "--model", self.model, "--metrics-port", str(ports["worker-metrics"])),
                probes.said_ready,
                ready_timeout_s=600.0,
            ),
            self._child(
                "flower",
                ("flower", "--port", str(ports["flower"])),
                probes.http(self.run.flower_url, 200, 401),
            ),
        ]
        await _together(*map(self._start_child, children))
        await asyncio.to_thread(_send_events, valkey.url_of(0), self.run.environment)
        self.run.ready = True
        self._children_changed()

    async def _start_stores(self, postgres: PostgresServer, valkey: ValkeyServer) -> None:
        step = self.progress.step
        with step("postgres", "starting"):
            rotate(postgres.log)
            postgres.prepare()
            await self.supervisor.start(Child(postgres.program, probes.blocking(postgres.is_ready)))
            await asyncio.to_thread(postgres.create_database)
        with step("valkey", "starting"):
            rotate(valkey.log)
            valkey.prepare()
            await self.supervisor.start(Child(valkey.program, probes.blocking(valkey.is_ready)))
        with step("migrate", "bringing the schema up to date"):
            await self._once("migrate", "migrate")
        with step("bootstrap", "tenant, API key and administrator's key"):
            files = ("--key-file", str(self.folder.api_key), "--admin-key-file", str(self.folder.admin_key))
            await self._once("bootstrap", "bootstrap", *files)

    async def _start_child(self, child: Child) -> None:
        what = "loading the model" if child.program.name == "worker" else "starting"
        with self.progress.step(child.program.name, what):
            await self.supervisor.start(child)

    @property
    def _model_folder(self) -> Path:
        return self.folder.path / "models" / self.model

    def _registration(self) -> tuple[str, ...]:
        """The command that registers the model; its prices are made up, so that the demo can show costs."""
        prices = ("--prompt-price", "0.05", "--cached-price", "0.025", "--output-price", "0.20")
        # half the demo model's context: more would only let one long request take the whole KV cache
        context = ("--max-model-len", "4096")
        own: tuple[str, ...] = ()
        if self.options.engine == "vllm":
            own = ("--tool-parser", demo_model.TOOL_PARSER)
            own += ("--probe-prompt", demo_model.PROBE_PROMPT, "--probe-word", demo_model.PROBE_WORD)
        return ("model", "add", self.model, "--path", str(self._model_folder), *context, *prices, *own)

    async def _make_model(self) -> None:
        target = self._model_folder
        if self.options.engine == "vllm":
            if demo_model.is_complete(target):
                return
            with self.progress.step("model", "converting the demo model, once"):
                await self.supervisor.run(self._python("model-convert", "-m", "cli.stack.model", str(target)))
        elif not target.exists():
            make = ("-m", "workers.deterministic", "--make-model", str(target))
            await self.supervisor.run(self._python("model-make", *make))

    def _choose_ports(self) -> dict[str, int]:
        saved = self.folder.saved_ports()
        wanted = {"api": self.options.api_port, "flower": self.options.flower_port}
        usual = {"api": API_PORT, "flower": FLOWER_PORT}
        ports: dict[str, int] = {}
        for name in ("api", "flower", "postgres", "valkey", "control-metrics", "worker-metrics"):
            if port := wanted.get(name):
                ports[name] = self._claims.require(port, name)
            else:
                ports[name] = self._claims.take(saved.get(name), usual.get(name))
        self.folder.save_ports(ports)
        return ports

    def _describe(self, ports: Mapping[str, int], postgres: PostgresServer, valkey: ValkeyServer) -> RunInfo:
        folder = self.folder
        return RunInfo(
            pid=os.getpid(),
            api_url=f"http://{LOOPBACK}:{ports['api']}",
            api_key_file=str(folder.api_key),
            admin_key_file=str(folder.admin_key),
            flower_url=f"http://{LOOPBACK}:{ports['flower']}",
            flower_user=flower.USER,
            flower_password_file=str(folder.secret_file("flower-password")),
            model=self.model,
            engine=self.options.engine,
            metrics_urls={
                "api": f"http://{LOOPBACK}:{ports['api']}/metrics",
                "control": f"http://{LOOPBACK}:{ports['control-metrics']}/metrics",
                "worker": f"http://{LOOPBACK}:{ports['worker-metrics']}/metrics",
            },
            environment={
                **self.options.settings,
                "HEADRACE_DATABASE_URL": postgres.url,
                "HEADRACE_BROKER_URL": valkey.url_of(0),
                "HEADRACE_STREAMS_URL": valkey.url_of(1),
                "HEADRACE_KEY_PEPPER": folder.secret("key-pepper"),
                "HEADRACE_WEBHOOK_PRIVATE": "true",  # receivers are on this machine too
                "HEADRACE_API_HOST": LOOPBACK,
                "HEADRACE_API_PORT": str(ports["api"]),
                "HEADRACE_FLOWER_URL": f"http://{LOOPBACK}:{ports['flower']}",
                "HEADRACE_ENGINE": self.options.engine,
                "HEADRACE_FILES_URL": str(folder.path / "files"),
                "HEADRACE_FLOWER_PASSWORD_FILE": str(folder.secret_file("flower-password")),
            },
        )

    def _children_changed(self) -> None:
        if self._run is not None:
            self._run.pids = self.supervisor.pids
            self.folder.write_run(self._run)

    def _child(
        self, name: str, words: Sequence[str], is_ready: probes.Probe, *, ready_timeout_s: float = 60.0
    ) -> Child:
        return Child(self._python(name, "-m", "cli", *words), is_ready, ready_timeout_s)

    async def _once(self, name: str, *words: str) -> None:
        await self.supervisor.run(self._python(name, "-m", "cli", *words))

    def _python(self, name: str, *words: str) -> Program:
        log = self.folder.logs / f"{name}.log"
        rotate(log)
        environment = {**os.environ, **_ENGINE_ENVIRONMENT, **self.run.environment}
        environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", _all_cores())
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile vLLM's modules again
        drain_s = float(environment.get("HEADRACE_DRAIN_S", "30"))
        return Program(
            name=name,
            argv=[sys.executable, "-P", *words],  # -P: nothing in the data folder can stand for a module
            log=log,
            cwd=self.folder.path,
            env=environment,
            stop_signal=signal.SIGTERM,
            stop_timeout_s=drain_s + _DRAIN_MARGIN_S if name == "worker" else 10.0,
        )


_ENGINE_ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",  # without a C++ compiler one logprobs request would end the engine
    "HF_HUB_OFFLINE": "1",  # models are local folders
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}


def _send_events(broker_url: str, environment: Mapping[str, str]) -> None:
    """Have the worker tell Flower of every task from the first one on, and not from when Flower next asks."""
    app = make_celery(
        broker_url, key_prefix=(os.environ | dict(environment)).get("HEADRACE_KEY_PREFIX", "hr")
    )
    app.control.broadcast("enable_events", reply=True, limit=1, timeout=5.0)
    app.close()


async def _together(*steps: Coroutine[None, None, None]) -> None:
    """Run steps at once; the first to fail cancels the others and is what is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _all_cores() -> str:
    """vLLM's own choice leaves a core of two idle: 280 tokens/s at 32 streams, against 404."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))
