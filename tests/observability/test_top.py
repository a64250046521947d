"""`headrace top` and `headrace workers` on a running platform."""

import json
import os
import subprocess
import sys
from pathlib import Path

from cli.client import Client, chat_body
from tests.support.stacks import SharedStack

ROOT = Path(__file__).resolve().parents[2]


def _environment() -> dict[str, str]:
    # vLLM sets it in a process that imports it, as this one may have: the loader's complaints would be output
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def headrace(stack: SharedStack, *words: str, code: int = 0) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words, "--data", str(stack.data)],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


async def test_top_shows_lanes_workers_times_and_cost_once_or_as_json(
    deterministic_stack: SharedStack,
) -> None:
    stack = deterministic_stack
    async with Client(stack.api_url, stack.api_key) as client:
        task = await client.submit(chat_body(stack.model, "Watch me.", max_tokens=20))
        await client.wait(task.id)
        endless = chat_body(stack.model, "Go on.", max_tokens=3000) | {"ignore_eos": True}
        running = await client.submit(endless)
        seen = json.loads(headrace(stack, "top", "--json"))
        shown = headrace(stack, "top", "--once")
        await client.cancel(running.id)
    recent = {one["priority"]: one for one in seen["recent"]}["standard"]
    assert recent["ended"] >= 1
    assert recent["ttft_p50_ms"] > 0
    assert recent["cost_usd_micros"] > 0
    assert [worker["health"] for worker in seen["workers"]] == ["healthy"]
    lanes = {lane["lane"]: lane for lane in seen["lanes"]}
    assert sum(lane["running"] + lane["queued"] for lane in lanes.values()) >= 1
    for text in ("tokens/s", "/min", f"{stack.model}.", "standard", "healthy"):
        assert text in shown


async def test_workers_shows_who_serves_what(deterministic_stack: SharedStack) -> None:
    shown = headrace(deterministic_stack, "workers")
    for text in (deterministic_stack.model, "deterministic", "short, medium, long", "ready", "healthy"):
        assert text in shown
    seen = json.loads(headrace(deterministic_stack, "workers", "--json"))
    assert [worker["state"] for worker in seen["data"]] == ["ready"]


def test_without_an_api_a_line_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli", "top", "--once", "--data", str(tmp_path)],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("headrace: no stack runs on")
