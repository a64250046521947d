"""POST /v1/chat/completions by the official client."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.api.conftest import Counter
from tests.support.stacks import SharedStack as Stack
from tests.support.waiting import eventually_async

MESSAGES: Any = [{"role": "user", "content": "Tell me about mill wheels."}]


async def test_a_plain_answer_has_text_usage_and_the_request_id(openai: AsyncOpenAI, stack: Stack) -> None:
    answer = await openai.chat.completions.create(model=stack.model, messages=MESSAGES, max_tokens=8)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer._request_id


def test_the_synchronous_client_works_too(openai_sync: OpenAI, stack: Stack) -> None:
    answer = openai_sync.chat.completions.create(model=stack.model, messages=MESSAGES, max_tokens=4)
    assert answer.choices[0].message.content


async def test_a_streamed_answer_equals_the_plain_one(openai: AsyncOpenAI, stack: Stack) -> None:
    plain = await openai.chat.completions.create(model=stack.model, messages=MESSAGES, max_tokens=16)
    chunks = [
        chunk
        async for chunk in await openai.chat.completions.create(
            model=stack.model, messages=MESSAGES, max_tokens=16, stream=True
        )
    ]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == plain.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "length"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1


async def test_usage_of_a_stream_comes_last_and_alone(openai: AsyncOpenAI, stack: Stack) -> None:
    chunks = [
        chunk
        async for chunk in await openai.chat.completions.create(
            model=stack.model,
            messages=MESSAGES,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


async def test_empty_stream_options_send_no_usage(http: httpx.AsyncClient, stack: Stack) -> None:
    body = {
        "model": stack.model,
        "messages": MESSAGES,
        "max_tokens": 3,
        "stream": True,
        "stream_options": {},
    }
    answer = await http.post("/v1/chat/completions", json=body)
    frames = [line for line in answer.text.split("\n\n") if line]
    assert frames[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(frame.removeprefix("data: ")) for frame in frames[:-1])


async def test_usage_on_every_chunk_counts_up(http: httpx.AsyncClient, stack: Stack) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": stack.model, "messages": MESSAGES, "max_tokens": 4, "stream": True}
    answer = await http.post("/v1/chat/completions", json=body | {"stream_options": options})
    frames = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    counts = [frame["usage"]["completion_tokens"] for frame in frames if frame["usage"]]
    assert counts == sorted(counts)
    assert counts[-1] == 4


async def test_several_choices_come_apart(openai: AsyncOpenAI, stack: Stack) -> None:
    answer = await openai.chat.completions.create(
        model=stack.model, messages=MESSAGES, max_tokens=6, n=3, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 18
    texts = {0: "", 1: "", 2: ""}
    async for chunk in await openai.chat.completions.create(
        model=stack.model, messages=MESSAGES, max_tokens=6, n=3, seed=1, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in answer.choices}


@pytest.mark.parametrize("top", [None, 2])
async def test_logprobs_come_with_and_without_alternatives(
    openai: AsyncOpenAI, stack: Stack, top: int | None
) -> None:
    answer = await openai.chat.completions.create(
        model=stack.model, messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=top
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 3
    assert all(len(item.top_logprobs) == (top or 0) for item in logprobs.content)


async def test_a_stop_string_ends_the_answer_before_it(openai: AsyncOpenAI, stack: Stack) -> None:
    whole = await openai.chat.completions.create(model=stack.model, messages=MESSAGES, max_tokens=12)
    text = whole.choices[0].message.content or ""
    stop = text.split()[6]
    cut = await openai.chat.completions.create(
        model=stack.model, messages=MESSAGES, max_tokens=12, stop=["~", "^", "|", stop]
    )
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].message.content == text[: text.index(stop)]


async def test_a_system_fingerprint_says_which_engine_answered(openai: AsyncOpenAI, stack: Stack) -> None:
    answer = await openai.chat.completions.create(model=stack.model, messages=MESSAGES, max_tokens=1)
    assert (answer.system_fingerprint or "").startswith("headrace-deterministic")


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
