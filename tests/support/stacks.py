"""Stacks that tests share: `headrace up` as a process of its own, started when a test first asks for it.

Nothing of them may be broken by a test: whoever kills parts starts a stack of its own.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.stack import model
from cli.stack.folder import DataFolder, RunInfo
from cli.stack.ports import free_port
from cli.stack.process import Program, spawn
from tests.support.demo_model import demo_model
from tests.support.otlp import Otlp, otlp_receiver

ROOT = Path(__file__).resolve().parents[2]
_STOPPED_WITHIN_S = 90.0  # the worker's drain and more


class SharedStack:
    """A running stack, as run.json describes it; what may change (process ids) is read anew each time."""

    def __init__(self, data: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = DataFolder(data)
        self.process = process

    @property
    def run(self) -> RunInfo:
        """What run.json says now."""
        run = self.folder.running()
        assert run is not None, f"the stack on {self.folder.path} ended"
        return run

    @property
    def data(self) -> Path:
        """The stack's folder."""
        return self.folder.path

    @property
    def api_url(self) -> str:
        """Without a slash at its end."""
        return self.run.api_url

    @property
    def api_key(self) -> str:
        """The key of tenant `default`."""
        return self.run.api_key

    @property
    def headers(self) -> dict[str, str]:
        """For requests to the API."""
        return {"Authorization": f"Bearer {self.api_key}"}

    @property
    def model(self) -> str:
        """The name of the model it serves."""
        return self.run.model

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
        """Process ids by child name."""
        return self.run.pids

    @property
    def environment(self) -> dict[str, str]:
        """HEADRACE_* of the stack's processes."""
        return self.run.environment

    @property
    def database_url(self) -> str:
        """postgresql:// URL."""
        return self.environment["HEADRACE_DATABASE_URL"]

    @property
    def broker_url(self) -> str:
        """redis:// URL of Celery's queues."""
        return self.environment["HEADRACE_BROKER_URL"]

    @property
    def streams_url(self) -> str:
        """redis:// URL of events and results."""
        return self.environment["HEADRACE_STREAMS_URL"]

    def logs(self, name: str) -> str:
        """All that a part (api, worker, control, flower, postgres, valkey, up) wrote since it was started."""
        return (self.folder.logs / f"{name}.log").read_text(errors="replace")

    def tail(self, lines: int = 15) -> str:
        """The end of every log, for messages of failed tests."""
        found = sorted(self.folder.logs.glob("*.log"))
        return "\n".join(
            f"--- {log.name}\n" + "\n".join(self.logs(log.stem).splitlines()[-lines:]) for log in found
        )


@contextmanager
def shared_stack(
    data: Path, *options: str, within_s: float, settings: Mapping[str, str] | None = None
) -> Iterator[SharedStack]:
    """Run `headrace up`, wait until it serves, and leave nothing behind. `settings`: variables of its processes."""
    logs = DataFolder(data).logs
    logs.mkdir(parents=True, exist_ok=True)
    # The usual ports are not for tests: other stacks of this machine may be about to take them.
    ports = ("--api-port", str(free_port()), "--flower-port", str(free_port()))
    argv = [sys.executable, "-m", "cli", "up", "--data", str(data), *ports, *options]
    # A killed test run must not leave a stack: `up` is told to stop, and stops its children.
    environment = os.environ | dict(settings or {})
    up = Program("up", argv, logs / "up.log", ROOT, environment, death_signal=signal.SIGTERM)
    process = spawn(up)
    stack = SharedStack(data, process)
    try:
        _wait_until_ready(stack, within_s)
        yield stack
    finally:
        process.terminate()
        try:
            process.wait(_STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its children end with it
            process.wait()
            raise


def _wait_until_ready(stack: SharedStack, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while (run := stack.folder.running()) is None or not run.ready:
        assert stack.process.poll() is None, f"headrace up ended\n{stack.tail()}"
        assert time.monotonic() < deadline, f"headrace up: not ready within {within_s} s\n{stack.tail()}"
        time.sleep(0.05)  # between two looks; nothing is assumed to have happened after it


def lend_demo_model(data: Path) -> None:
    """Give a data folder the demo model, so that its stack need not convert it again."""
    known = demo_model()
    target = data / "models" / model.NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(known, target, copy_function=os.link)
    except OSError:  # another file system
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(known, target)


@pytest.fixture(scope="session")
def otlp() -> Iterator[Otlp]:
    """What the shared stacks trace: everything."""
    with otlp_receiver() as receiver:
        yield receiver


def _traced(otlp: Otlp) -> dict[str, str]:
    return {
        "HEADRACE_TRACE_TO": otlp.url,
        "HEADRACE_TRACE_SHARE": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "200",  # ms
    }


@pytest.fixture(scope="session")
def deterministic_stack(tmp_path_factory: pytest.TempPathFactory, otlp: Otlp) -> Iterator[SharedStack]:
    """A whole stack on the deterministic engine: seconds to start, made-up text."""
    data = tmp_path_factory.mktemp("deterministic-stack")
    with shared_stack(data, "--engine", "deterministic", within_s=120, settings=_traced(otlp)) as stack:
        yield stack


@pytest.fixture(scope="session")
def vllm_stack(tmp_path_factory: pytest.TempPathFactory, otlp: Otlp) -> Iterator[SharedStack]:
    """A whole stack on vLLM and the demo model; a minute to start, two in a checkout that never converted it."""
    data = tmp_path_factory.mktemp("vllm-stack")
    lend_demo_model(data)
    with shared_stack(data, within_s=660, settings=_traced(otlp)) as stack:
        yield stack
