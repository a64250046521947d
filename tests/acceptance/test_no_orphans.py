"""Whatever is killed with -9, nothing of it lives on: no engine, no store, no other child."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.support.stacks import lend_demo_model
from tests.support.up import Up, running_up
from tests.support.waiting import eventually, is_alive

pytestmark = pytest.mark.vllm


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Up]:
    lend_demo_model(tmp_path / "data")
    async with running_up(tmp_path / "data", within_s=600) as up:
        yield up


def descendants(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


async def test_a_killed_worker_leaves_no_engine_and_a_killed_up_leaves_nothing(up: Up) -> None:
    worker = up.run.pids["worker"]
    engine = descendants(worker)
    assert engine, "the engine has processes of its own"
    os.kill(worker, signal.SIGKILL)
    await eventually(lambda: not any(map(is_alive, engine)), 10.0, "the killed worker's engine is gone")

    await eventually(lambda: up.run.pids.get("worker", worker) != worker, 30.0, "the worker is started again")
    everything = descendants(up.process.pid)
    assert len(everything) >= 6
    up.process.kill()
    await eventually(lambda: not any(map(is_alive, everything)), 10.0, "nothing of the killed stack is left")
