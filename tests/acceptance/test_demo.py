"""`headrace demo`: what a first look shows, and that nothing is left of it."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from cli.demo import ANSWER, BATCH
from cli.stack.folder import DataFolder, RunInfo
from tests.support.stacks import SharedStack, lend_demo_model
from tests.support.waiting import eventually, is_alive


async def start_demo(data: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "cli", "demo", "--data", str(data)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run_demo(data: Path, within_s: float = 300) -> tuple[int, str, str]:
    """Exit code, output, errors."""
    process = await start_demo(data)
    out, err = await asyncio.wait_for(process.communicate(), within_s)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def shows_everything(out: str) -> None:
    assert f"The capital of France is {ANSWER}." in out
    for state in ("in_progress", "completed"):
        assert state in out
    for word in ("first token", "tokens", "USD 0.0000", "together"):
        assert word in out
    assert out.count("  > ") == 2 + len(BATCH)
    assert "\x1b" not in out, "not a terminal: no colours"


@pytest.mark.vllm
async def test_the_demo_uses_a_stack_that_runs_and_leaves_it_running(vllm_stack: SharedStack) -> None:
    pids = vllm_stack.pids
    code, out, err = await run_demo(vllm_stack.data)
    assert (code, err) == (0, "")
    shows_everything(out)
    assert vllm_stack.pids == pids


@pytest.mark.vllm
@pytest.mark.full
async def test_the_demo_starts_everything_and_leaves_nothing_running(tmp_path: Path) -> None:
    lend_demo_model(tmp_path)
    code, out, err = await run_demo(tmp_path, within_s=600)
    assert (code, err) == (0, "")
    shows_everything(out)
    assert DataFolder(tmp_path).running() is None


async def test_a_wrong_answer_fails_the_demo_and_is_shown(deterministic_stack: SharedStack) -> None:
    code, _, err = await run_demo(deterministic_stack.data)
    assert code == 1
    assert f"doesn't say {ANSWER}" in err
    assert "deterministic" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "models").mkdir()
    process = await start_demo(tmp_path)
    folder = DataFolder(tmp_path)

    def run() -> RunInfo | None:
        assert process.returncode is None, "the demo ended"
        return folder.running()

    await eventually(lambda: (found := run()) is not None and "valkey" in found.pids, 60, "stores run")
    found = run()
    assert found is not None
    process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert not any(map(is_alive, found.pids.values()))
    assert folder.running() is None
