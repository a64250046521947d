"""What a caller is told while it waits, and calls that prefer not to."""

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.api.test_tasks import body_of, final
from tests.support.seeds import opened, random_name
from tests.support.stacks import SharedStack as Stack
from tests.support.waiting import eventually_async


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


async def test_a_tenant_never_runs_more_than_it_may_and_all_it_asked_for_is_done(stack: Stack) -> None:
    admin = {"Authorization": f"Bearer {stack.run.admin_key}"}
    name = random_name("bounded")

    async with httpx.AsyncClient(base_url=stack.api_url, timeout=30) as http:

        async def change(method: str, path: str, what: object) -> Any:
            answer = await http.request(method, f"/v1/admin{path}", json=what, headers=admin)
            assert answer.is_success, answer.text
            return answer.json()

        tenant = await change("POST", "/tenants", {"name": name, "max_running_tasks": 2})
        await change("PUT", f"/tenants/{name}/grants/{stack.model}", {})
        key = (await change("POST", "/keys", {"tenant": name, "name": "k"}))["key"]
        http.headers["Authorization"] = f"Bearer {key}"
        body = body_of(stack, max_tokens=40)
        made = await asyncio.gather(*(http.post("/v1/tasks", json=body) for _ in range(12)))
        ids = [answer.json()["id"] for answer in made]

        async def told() -> bool:
            found = [(await http.get(f"/v1/tasks/{one}")).json().get("queue") for one in ids]
            return "tenant_limit" in {one["waiting_for"] for one in found if one is not None}

        await eventually_async(told, what="what they wait for is told")
        for one in ids:
            assert (await final(http, one))["status"] == "completed"
    async with opened(stack.database_url) as database, database.connect() as connection:
        rows = await connection.execute(
            sa.text(
                "SELECT a.claimed_at, a.ended_at FROM attempts a JOIN tasks t ON t.id = a.task_id"
                " WHERE t.tenant_id = :tenant"
            ),
            {"tenant": tenant["id"]},
        )
        attempts = [(row.claimed_at, row.ended_at) for row in rows]
    assert len(attempts) == 12
    for claimed_at, _ in attempts:
        assert sum(began <= claimed_at < ended for began, ended in attempts) <= 2


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
