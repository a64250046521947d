"""What a person sees of the platform in Flower, and what nobody may see there."""

import secrets
from pathlib import Path

import httpx
import pytest

from cli.answers import Task
from cli.client import Client, chat_body
from core.lanes import Priority
from tests.support.browser import CHROMIUM, browser
from tests.support.stacks import ROOT, SharedStack
from tests.support.waiting import eventually_async

ARTIFACTS = ROOT / "tests" / "artifacts"
PRIVATE = ("/", "/workers", "/tasks", "/broker", "/api/workers", "/api/tasks")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


async def flower_listens(client: Client, stack: SharedStack) -> None:
    """Workers send events only once Flower has asked for them; what ran before, it never hears of."""
    async with httpx.AsyncClient(base_url=stack.flower_url, auth=stack.flower_auth, timeout=30) as flower:
        for _ in range(100):
            task = await client.submit(chat_body(stack.model, "hello", max_tokens=1))
            await client.wait(task.id)
            if (await flower.get("/api/tasks", params={"limit": 1})).json():
                return
    raise AssertionError(f"Flower hears of no task\n{stack.tail()}")


async def flower_knows_lanes(stack: SharedStack) -> None:
    """It asks the workers for them every ten seconds."""
    async with httpx.AsyncClient(base_url=stack.flower_url, auth=stack.flower_auth, timeout=30) as flower:

        async def known() -> bool:
            workers = (await flower.get("/api/workers")).json()
            return any(worker.get("active_queues") for worker in workers.values())

        await eventually_async(known, within_s=30, what="a worker's lanes in Flower")


async def run_tasks(client: Client, stack: SharedStack, prompt: str) -> list[Task]:
    """One finished task of each priority."""
    tasks = [
        await client.submit(chat_body(stack.model, prompt, max_tokens=24), priority=priority)
        for priority in Priority
    ]
    return [await client.wait(task.id) for task in tasks]


def keep(name: str, picture: bytes) -> None:
    """Leave a picture for whoever wants to look."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    (ARTIFACTS / name).write_bytes(picture)


@needs_chromium
async def test_flower_shows_workers_lanes_and_tasks_and_nothing_of_their_text(
    deterministic_stack: SharedStack, tmp_path: Path
) -> None:
    stack = deterministic_stack
    marker = f"secret-{secrets.token_hex(8)}"
    async with Client(stack.api_url, stack.api_key) as client:
        await flower_listens(client, stack)
        tasks = await run_tasks(client, stack, f"Do not show {marker} to anybody.")
    lanes = {task.lane for task in tasks}
    assert lanes == {f"{stack.model}.short.{priority}" for priority in Priority}
    answers = [task.text.strip() for task in tasks]
    assert all(len(answer) > 20 for answer in answers)

    seen: dict[str, str] = {}
    async with browser(tmp_path / "profile") as page:
        await page.log_in(*stack.flower_auth)

        await page.open(f"{stack.flower_url}/workers")
        worker, *_ = await page.row("#workers-table", f"{stack.model}@", "Online")
        seen["workers"] = await page.dom()
        keep("flower-workers.png", await page.picture())

        await page.open(f"{stack.flower_url}/tasks")
        for task in tasks:
            await page.row("#tasks-table", task.id, task.lane, "SUCCESS", worker)
        seen["tasks"] = await page.dom()
        keep("flower-tasks.png", await page.picture())

        await page.open(f"{stack.flower_url}/task/{tasks[0].id}")
        await page.until_shown("SUCCESS")
        seen["task"] = await page.dom()
        keep("flower-task.png", await page.picture())

        await flower_knows_lanes(stack)
        await page.open(f"{stack.flower_url}/broker")
        for lane in lanes:
            await page.row("table", lane)
        seen["broker"] = await page.dom()
        keep("flower-broker.png", await page.picture())

    for name, dom in seen.items():
        assert stack.model in dom, f"/{name} shows nothing"
        for text in (marker, *answers, *(answer[:20] for answer in answers)):
            assert text not in dom, f"/{name} shows text of a task"


@pytest.mark.parametrize("path", PRIVATE)
async def test_flower_shows_nothing_without_its_password(deterministic_stack: SharedStack, path: str) -> None:
    async with httpx.AsyncClient(base_url=deterministic_stack.flower_url, timeout=30) as client:
        assert (await client.get(path)).status_code == 401
        assert (await client.get(path, auth=("headrace", "wrong"))).status_code == 401
