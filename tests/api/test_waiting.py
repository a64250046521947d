"""What a caller is told while it waits, and calls that prefer not to."""

import json
import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.api.test_tasks import body_of, final
from tests.support.stacks import SharedStack as Stack


async def test_who_prefers_so_gets_a_task_instead_of_an_answer(http: httpx.AsyncClient, stack: Stack) -> None:
    body: dict[str, Any] = body_of(stack)["body"]
    answer = await http.post("/v1/chat/completions", json=body, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "respond-async"
    task = answer.json()
    assert (task["object"], answer.headers["location"]) == ("task", f"/v1/tasks/{task['id']}")
    assert (await final(http, task["id"]))["status"] == "completed"
    refused = await http.post(
        "/v1/chat/completions", json=body | {"stream": True}, headers={"Prefer": "respond-async"}
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


async def test_a_queued_task_says_where_it_stands(http: httpx.AsyncClient, stack: Stack) -> None:
    tasks = [(await http.post("/v1/tasks", json=body_of(stack, max_tokens=60))).json() for _ in range(90)]
    shown = [(await http.get(f"/v1/tasks/{task['id']}")).json() for task in reversed(tasks[-3:])]
    waiting = [one["queue"] for one in shown if one["status"] == "queued" and one["queue"] is not None]
    for one in waiting:
        assert one["lane"].endswith(".short.standard")
        assert one["position"] >= 1
        assert one["tokens_ahead"] >= 0
        assert one["waiting_for"] in ("slots", "tenant_share")
    for task in tasks:
        await http.post(f"/v1/tasks/{task['id']}/cancel")


@pytest.mark.parametrize("option", ["--json", "--once"])
def test_headrace_queue_shows_lanes_and_workers(stack: Stack, option: str) -> None:
    command = [sys.executable, "-m", "cli", "queue", option]
    shown = subprocess.run(
        command,
        env={**os.environ, **stack.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    if option == "--once":
        assert "workers" in shown
        return
    found = json.loads(shown)
    (worker,) = found["workers"]
    assert (worker["model"], worker["state"]) == (stack.model, "ready")
    assert worker["slots"] > worker["reserved_slots"] > 0
    assert {"lanes", "models", "workers"} == set(found)
