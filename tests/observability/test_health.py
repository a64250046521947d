"""An engine that gets worse, seen as an administrator sees it: over HTTP."""

from typing import Any

import httpx

from core.scopes import Scope
from services.register import create_key
from tests.chaos.lab import DEFAULTS, MODEL, Lab
from tests.support.seeds import opened
from tests.support.waiting import eventually, eventually_async
from workers.deterministic import FAULT_FREEZE, FAULT_SLOW


class Operator:
    """Who looks on."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.key = ""

    async def see(self) -> dict[str, Any]:
        """GET /v1/admin/workers."""
        if not self.key:
            pepper = DEFAULTS["HEADRACE_KEY_PEPPER"].encode()
            async with opened(self.lab.postgres.url) as database:
                self.key = await create_key(
                    database, tenant="operator", name="admin", pepper=pepper, scopes=[Scope.ADMIN]
                )
        async with httpx.AsyncClient(base_url=self.lab.api_url) as http:
            answer = await http.get("/v1/admin/workers", headers={"Authorization": f"Bearer {self.key}"})
        assert answer.status_code == 200, answer.text
        seen: dict[str, Any] = answer.json()
        return seen

    async def worker(self, name: str) -> dict[str, Any]:
        """One worker's row; empty while it has none."""
        seen = await self.see()
        return next((one for one in seen["data"] if one["id"] == name), {})

    async def until(self, name: str, within_s: float = 40.0, **fields: str) -> dict[str, Any]:
        """Wait until a worker's row has these values."""

        async def has() -> bool:
            return fields.items() <= (await self.worker(name)).items()

        await eventually_async(has, within_s, f"{name} {fields}")
        return await self.worker(name)

    async def changes(self, name: str) -> list[tuple[str, str, list[str]]]:
        """A worker's changes of health, oldest first: before, after, signs."""
        events = (await self.see())["events"]
        mine = [event for event in events if event["worker"] == name]
        return [(event["before"], event["health"], list(event["reasons"])) for event in reversed(mine)]


async def submit(lab: Lab, prompt: str, priority: str = "standard", max_tokens: int = 3000) -> str:
    """A long task; return its id."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }
    headers = {"Authorization": f"Bearer {lab.api_key}"}
    async with httpx.AsyncClient(base_url=lab.api_url, headers=headers) as http:
        asked = {"url": "/v1/chat/completions", "body": body, "priority": priority}
        answer = await http.post("/v1/tasks", json=asked)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def ran_on(lab: Lab, task_id: str) -> str | None:
    """The worker that has or had a task."""
    return str(lab.query("SELECT worker FROM tasks WHERE id = :id", id=task_id)[0].worker or "") or None


async def test_a_slowed_engine_becomes_degraded_and_people_are_sent_to_another_worker(lab: Lab) -> None:
    await lab.start_api()
    await lab.start_worker("slowed")
    operator = Operator(lab)
    await operator.until("slowed", state="ready", health="healthy")
    await submit(lab, "Go on and on.")
    await lab.running_on("slowed", 1, emitted=300)  # windows enough to know how fast it is
    await submit(lab, FAULT_SLOW)
    slowed = await operator.until("slowed", health="degraded")
    assert "slow_steps" in slowed["reasons"]
    assert slowed["state"] == "ready"
    before, after, signs = (await operator.changes("slowed"))[0]
    assert (before, after) == ("healthy", "degraded")
    assert set(signs) <= {"slow_steps", "slow_probe"}

    alone = await submit(lab, "Nobody else is there.", "interactive", max_tokens=3)

    async def ended() -> bool:
        return bool(lab.query("SELECT 1 FROM tasks WHERE id = :id AND state = 'completed'", id=alone))

    await eventually_async(ended, 20, "slow beats not at all")
    assert ran_on(lab, alone) == "slowed"

    await lab.start_worker("well")
    await operator.until("well", state="ready", health="healthy")
    await eventually(
        lambda: '"event":"people_left_to_others"' in lab.child("slowed").log(), 20, "it sees the other one"
    )
    people = [await submit(lab, f"Person {number}", "interactive", max_tokens=3) for number in range(6)]
    for person in people:

        async def taken(person: str = person) -> bool:
            return ran_on(lab, person) is not None

        await eventually_async(taken, what="a worker takes it")
    assert {ran_on(lab, person) for person in people} == {"well"}


async def test_an_engine_with_wrong_answers_is_never_ready_and_takes_no_task(lab: Lab) -> None:
    lab.query("UPDATE models SET probe_prompt = 'What is the capital of France?', probe_words = '{Paris}'")
    await lab.start_api()
    task_id = await submit(lab, "Wait for a good one.", max_tokens=3)
    worker = await lab.start("wrong", "worker", ready='"event":"probe_wrong"', HEADRACE_WORKER_NAME="wrong")
    operator = Operator(lab)
    wrong = await operator.until("wrong", health="unhealthy", state="engine_down")
    assert set(wrong["reasons"]) <= {"wrong_answer", "engine_down"}
    assert (await operator.changes("wrong"))[0] == ("healthy", "unhealthy", ["wrong_answer"])

    async def tried_again() -> bool:
        return worker.log().count('"event":"engine_not_rebuilt"') >= 2

    await eventually_async(tried_again, 20, "it is built again, and again")
    assert (await operator.worker("wrong"))["state"] == "engine_down"
    assert ran_on(lab, task_id) is None
    assert '"event":"ready"' not in worker.log()

    lab.query("UPDATE models SET probe_words = '{}'")
    await lab.start_worker("good")

    async def taken() -> bool:
        return ran_on(lab, task_id) == "good"

    await eventually_async(taken, 20, "a good worker takes it")


async def test_a_frozen_engine_is_built_again_and_its_task_ends(lab: Lab) -> None:
    await lab.start_api()
    await lab.start_control()
    await lab.start_worker("frozen")
    operator = Operator(lab)
    await operator.until("frozen", state="ready")
    task_id = await submit(lab, "Do not lose me.", max_tokens=400)
    await lab.running_on("frozen", 1)
    await submit(lab, FAULT_FREEZE, max_tokens=2)

    async def rebuilt() -> bool:
        changes = await operator.changes("frozen")
        return [after for _, after, _ in changes][-2:] == ["unhealthy", "healthy"]

    await eventually_async(rebuilt, 40, "rebuilt")
    assert ("healthy", "unhealthy", ["engine_down"]) in await operator.changes("frozen")

    async def ended() -> bool:
        return bool(lab.query("SELECT 1 FROM tasks WHERE id = :id AND state = 'completed'", id=task_id))

    await eventually_async(ended, 40, "the task ends")
