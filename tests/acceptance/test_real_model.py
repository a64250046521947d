"""The main job on the real model: vLLM behind queues, asked as users ask."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.support.sse import read_events, text_of
from tests.support.stacks import SharedStack
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.vllm

CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
# Each of these hung a vLLM engine for good, without an error.
WRONG_TYPED = [
    ("max_tokens", 5.0),
    ("min_tokens", 1.5),
    ("temperature", True),
    ("seed", "x"),
    ("logit_bias", {"5.0": 1}),
    ("logit_bias", {"5": "1"}),
    ("ignore_eos", "yes"),
    ("stop_token_ids", [True]),
    ("priority", "high"),
    ("request_id", 5),
    ("cache_salt", 5),
]


async def test_the_official_client_gets_the_right_answer_plain_and_streamed(vllm_stack: SharedStack) -> None:
    async with AsyncOpenAI(base_url=f"{vllm_stack.api_url}/v1", api_key=vllm_stack.api_key) as client:
        plain = await client.chat.completions.create(
            model=vllm_stack.model, messages=CAPITAL, temperature=0, max_tokens=24
        )
        streamed = [
            chunk.choices[0].delta.content or ""
            async for chunk in await client.chat.completions.create(
                model=vllm_stack.model, messages=CAPITAL, temperature=0, max_tokens=24, stream=True
            )
        ]
    assert "Paris" in (plain.choices[0].message.content or "")
    assert "".join(streamed) == plain.choices[0].message.content
    assert plain.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("field", "value"), WRONG_TYPED)
async def test_a_wrong_typed_value_is_refused_by_name_and_the_engine_goes_on(
    vllm_stack: SharedStack, field: str, value: object
) -> None:
    async with httpx.AsyncClient(base_url=vllm_stack.api_url, headers=vllm_stack.headers, timeout=60) as http:
        body = {"model": vllm_stack.model, "messages": CAPITAL, "max_tokens": 3}
        refused = await http.post("/v1/chat/completions", json=body | {field: value})
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"].startswith(field)
        answered = await http.post("/v1/chat/completions", json=body)
        assert answered.status_code == 200, answered.text


async def test_a_cancel_stops_generation_within_two_seconds(vllm_stack: SharedStack) -> None:
    async with httpx.AsyncClient(base_url=vllm_stack.api_url, headers=vllm_stack.headers, timeout=60) as http:
        body = {"model": vllm_stack.model, "messages": CAPITAL, "max_tokens": 3000, "ignore_eos": True}
        task = (await http.post("/v1/tasks", json={"url": "/v1/chat/completions", "body": body})).json()
        path = f"/v1/tasks/{task['id']}"
        async for event in read_events(http, f"{path}/events"):
            if event["type"] == "task.delta" and event["tokens"][1] > 5:
                break
        await http.post(f"{path}/cancel")

        async def is_cancelled() -> bool:
            return bool((await http.get(path)).json()["status"] == "cancelled")

        await eventually_async(is_cancelled, within_s=2.0, what="cancelled")
        done = (await http.get(path)).json()
        assert 5 < done["usage"]["completion_tokens"] < 3000
        assert done["cost_usd_micros"] > 0


async def test_sampling_with_a_seed_repeats_and_logprobs_are_real(vllm_stack: SharedStack) -> None:
    async with AsyncOpenAI(base_url=f"{vllm_stack.api_url}/v1", api_key=vllm_stack.api_key) as client:
        first, second = [
            await client.chat.completions.create(
                model=vllm_stack.model,
                messages=CAPITAL,
                seed=7,
                temperature=0.8,
                max_tokens=8,
                logprobs=True,
                top_logprobs=2,
            )
            for _ in range(2)
        ]
    assert first.choices[0].message.content == second.choices[0].message.content
    logprobs = first.choices[0].logprobs
    assert logprobs is not None
    assert all(item.logprob <= 0 and len(item.top_logprobs) == 2 for item in logprobs.content or [])


async def test_an_answer_of_a_schema_is_of_that_schema(vllm_stack: SharedStack) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 12}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    async with AsyncOpenAI(base_url=f"{vllm_stack.api_url}/v1", api_key=vllm_stack.api_key) as client:
        answer = await client.chat.completions.create(
            model=vllm_stack.model,
            messages=CAPITAL,
            temperature=0,
            max_tokens=40,
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        )
    assert set(json.loads(answer.choices[0].message.content or "")) == {"capital"}


async def test_prompts_are_counted_at_admission_as_the_engine_counts_them(vllm_stack: SharedStack) -> None:
    messages = [
        {"role": "system", "content": "Antworte auf Deutsch: äöü ß €"},
        {"role": "user", "content": "日本語 and emoji 🎡"},
        {"role": "assistant", "content": "Gern."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    async with httpx.AsyncClient(base_url=vllm_stack.api_url, headers=vllm_stack.headers, timeout=60) as http:
        body = {"model": vllm_stack.model, "messages": messages, "max_tokens": 1}
        answer = await http.post(
            "/v1/tasks",
            json={"url": "/v1/chat/completions", "body": body},
            headers={"Prefer": "wait=30"},
        )
    task = answer.json()
    assert task["status"] == "completed"
    assert task["prompt_tokens"] == task["usage"]["prompt_tokens"]


async def test_sixteen_streams_at_once_equal_what_polling_gives(vllm_stack: SharedStack) -> None:
    async with httpx.AsyncClient(
        base_url=vllm_stack.api_url, headers=vllm_stack.headers, timeout=120
    ) as http:

        async def one(number: int) -> None:
            message = {"role": "user", "content": f"Write a sentence about the number {number}."}
            body = {"model": vllm_stack.model, "messages": [message], "max_tokens": 24, "temperature": 0}
            task = (await http.post("/v1/tasks", json={"url": "/v1/chat/completions", "body": body})).json()
            events = [event async for event in read_events(http, f"/v1/tasks/{task['id']}/events")]
            polled = (await http.get(f"/v1/tasks/{task['id']}")).json()
            assert polled["status"] == "completed"
            assert text_of(events) == polled["response"]["choices"][0]["message"]["content"]
            assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))

        await asyncio.gather(*(one(number) for number in range(16)))
