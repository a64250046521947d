"""POST /v1/chat/completions beyond what the conformance suite asks: leaving, crowds, refusals."""

import asyncio
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.api.conftest import Counter
from tests.support.stacks import SharedStack as Stack
from tests.support.waiting import eventually_async

MESSAGES: Any = [{"role": "user", "content": "Tell me about mill wheels."}]


async def test_a_client_that_leaves_stops_its_task(http: httpx.AsyncClient, stack: Stack) -> None:
    body = {"model": stack.model, "messages": MESSAGES, "max_tokens": 3000, "stream": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        task_id = response.headers["x-headrace-task-id"]
        async for line in response.aiter_lines():
            if "content" in line:
                break

    async def is_cancelled() -> bool:
        return bool((await http.get(f"/v1/tasks/{task_id}")).json()["status"] == "cancelled")

    await eventually_async(is_cancelled, within_s=2.0, what="the task of the client that left is cancelled")
    task = (await http.get(f"/v1/tasks/{task_id}")).json()
    assert 0 < task["usage"]["completion_tokens"] < 3000


async def test_a_client_that_leaves_a_plain_call_stops_its_task_too(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    body = {"model": stack.model, "messages": MESSAGES, "max_tokens": 3000, "metadata": {"who": "leaver"}}
    with pytest.raises(httpx.ReadTimeout):
        await http.post("/v1/chat/completions", json=body, timeout=0.5)
    newest = (await http.get("/v1/tasks", params={"limit": 1})).json()["data"][0]

    async def is_cancelled() -> bool:
        return bool((await http.get(f"/v1/tasks/{newest['id']}")).json()["status"] == "cancelled")

    await eventually_async(is_cancelled, within_s=2.0, what="the task of the client that left is cancelled")


async def test_many_calls_at_once_all_get_their_own_answer(openai: AsyncOpenAI, stack: Stack) -> None:
    async def ask(i: int) -> str:
        answer = await openai.chat.completions.create(
            model=stack.model, messages=[{"role": "user", "content": f"Number {i}"}], max_tokens=8
        )
        return answer.choices[0].message.content or ""

    first = await asyncio.gather(*(ask(i) for i in range(40)))
    second = await asyncio.gather(*(ask(i) for i in range(40)))
    assert first == second
    assert len(set(first)) > 30


async def test_a_refused_request_costs_no_queue_place(
    http: httpx.AsyncClient, stack: Stack, accepted: Counter
) -> None:
    before = accepted()
    good = {"model": stack.model, "messages": MESSAGES}
    long = {"messages": [{"role": "user", "content": "word " * 5000}]}
    answers = [
        (await http.post("/v1/chat/completions", json=good | {"model": "other"}), 404, "model_not_found"),
        (await http.post("/v1/chat/completions", json=good | long), 400, "context_length_exceeded"),
        (
            await http.post("/v1/chat/completions", json=good | {"max_tokens": 5000}),
            400,
            "context_length_exceeded",
        ),
        (await http.post("/v1/chat/completions", json=good | {"max_tokens": 5.0}), 400, "invalid_value"),
        (await http.post("/v1/chat/completions", json=good | {"nonsense": 1}), 400, "unknown_parameter"),
        (
            await http.post(
                "/v1/chat/completions", json=good, headers={"Authorization": "Bearer hr_" + "a" * 44}
            ),
            401,
            "invalid_api_key",
        ),
    ]
    for answer, status, code in answers:
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == code
    assert "4096" in answers[1][0].json()["error"]["message"]
    assert accepted() == before
