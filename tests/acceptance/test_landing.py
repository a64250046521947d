"""The page at `/` of the API, looked at with a browser."""

from pathlib import Path

import httpx
import pytest

from cli.client import Client, chat_body
from tests.acceptance.test_flower import keep
from tests.support.browser import CHROMIUM, browser
from tests.support.stacks import SharedStack


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
async def test_the_page_shows_what_runs_and_links_to_the_rest(
    deterministic_stack: SharedStack, tmp_path: Path
) -> None:
    stack = deterministic_stack
    async with Client(stack.api_url, stack.api_key) as client:
        endless = chat_body(stack.model, "Show me.", max_tokens=3000) | {"ignore_eos": True}
        task = await client.submit(endless)
        async for event in client.events(task.id):
            if event.type == "task.delta":
                break
        async with browser(tmp_path / "profile") as page:
            await page.open(f"{stack.api_url}/")
            await page.until_shown("Models and workers")
            await page.row("table", stack.model, "deterministic", "ready", "healthy")
            await page.row("table", task.lane)
            links = await page.evaluate("[...document.links].map(link => link.href)")
            loaded = await page.evaluate("performance.getEntriesByType('resource').length")
            keep("landing.png", await page.picture())
        await client.cancel(task.id)
    assert {f"{stack.api_url}{path}" for path in ("/docs", "/openapi.json", "/readyz", "/metrics")} <= set(
        links
    )
    assert f"{stack.flower_url}/" in links
    assert loaded == 0, "the page is all there is to it"


async def test_strangers_see_links_and_nothing_of_what_runs(deterministic_stack: SharedStack) -> None:
    stack = deterministic_stack
    async with httpx.AsyncClient(base_url=stack.api_url) as client:
        seen = await client.get("/", headers={"X-Forwarded-For": "203.0.113.7"})
    assert seen.status_code == 200
    assert "/docs" in seen.text
    assert stack.model not in seen.text
