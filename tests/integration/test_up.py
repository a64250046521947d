"""`headrace up`: the whole stack from one command, with the deterministic engine."""

import signal
from pathlib import Path

import httpx
import pytest

from cli.stack.folder import RunInfo
from cli.stack.local import LocalStack, StackOptions
from tests.support.up import running_up, start_up
from tests.support.waiting import eventually, is_alive

PARTS = ["postgres", "valkey", "control", "api", "worker", "flower"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "a data folder"


async def test_up_serves_resumes_and_leaves_nothing_behind(data: Path) -> None:
    async with running_up(data, "--engine", "deterministic") as first:
        run = first.run
        assert list(run.pids) == PARTS
        await _serves(run)
        key = run.api_key

        second = await start_up(data, "--engine", "deterministic")
        assert await second.process.wait() == 2

        assert await first.end(signal.SIGINT) == 0
    assert not any(map(is_alive, run.pids.values()))
    assert first.folder.running() is None
    assert not (data / "run.json").exists()

    async with running_up(data, "--engine", "deterministic") as again:
        assert again.run.api_key == key
        assert again.run.environment == run.environment
        await _serves(again.run)


async def test_a_killed_up_leaves_nothing_and_the_next_one_works(data: Path) -> None:
    async with running_up(data, "--engine", "deterministic") as first:
        run = first.run
        await first.end(signal.SIGKILL)
    await eventually(lambda: not any(map(is_alive, run.pids.values())), within_s=10)
    async with running_up(data, "--engine", "deterministic") as again:
        await _serves(again.run)


async def test_the_stack_can_be_used_from_a_program(data: Path) -> None:
    quiet = {"HEADRACE_LOG_LEVEL": "error"}  # readiness depends on no level
    async with LocalStack(data, StackOptions(engine="deterministic", settings=quiet)) as stack:
        pids = stack.pids
        assert list(pids) == PARTS
        assert stack.api_key
        await _serves(stack.run)
    assert not any(map(is_alive, pids.values()))


async def _serves(run: RunInfo) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        models = await client.get(
            f"{run.api_url}/v1/models", headers={"Authorization": f"Bearer {run.api_key}"}
        )
        assert models.status_code == 200
        assert run.model in [model["id"] for model in models.json()["data"]]
        assert (await client.get(run.flower_url)).status_code == 401
        assert (await client.get(run.flower_url, auth=run.flower_auth)).status_code == 200
