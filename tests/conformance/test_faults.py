"""What clients see when they leave, wait, or lose the worker that answers them."""

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.chaos.lab import Lab
from tests.conformance.test_chat import CREATE, MESSAGES, texts_of
from tests.support.sdk import Sdk
from tests.support.stacks import SharedStack
from tests.support.waiting import eventually_async


@pytest.mark.vllm
@pytest.mark.shows("chat-client-break")
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_stops_the_engine_within_two_seconds(
    vllm_stack: SharedStack, streamed: bool
) -> None:
    body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
    headers = vllm_stack.headers
    async with (
        Sdk.of(vllm_stack, "async") as sdk,
        httpx.AsyncClient(base_url=vllm_stack.api_url, headers=headers, timeout=30) as http,
    ):
        if streamed:
            stream = await sdk.do(CREATE, model=sdk.model, stream=True, **body)
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                await sdk.do(CREATE, model=sdk.model, timeout=1.0, **body)
        newest = (await http.get("/v1/tasks", params={"limit": 1})).json()["data"][0]

        async def stopped() -> bool:
            task = (await http.get(f"/v1/tasks/{newest['id']}")).json()
            return bool(task["status"] == "cancelled" and task["usage"]["completion_tokens"] < 3000)

        await eventually_async(stopped, within_s=2.0, what="the task of the client that left is cancelled")


@pytest.mark.shows("chat-queue-silence")
@pytest.mark.parametrize(
    ("kind", "silence_s"), [("async", 2.5), pytest.param("sync", 60.0, marks=pytest.mark.full)]
)
async def test_a_stream_outlives_silence_in_the_queue(lab: Lab, kind: Any, silence_s: float) -> None:
    lab.settings |= {"HEADRACE_SYNC_START_S": "120", "HEADRACE_KEEPALIVE_S": str(min(10.0, silence_s / 5))}
    await asyncio.gather(lab.start_api(), lab.start_control())
    # a read timeout below the silence: without keep-alives the client would give up
    patience = httpx.Timeout(silence_s / 2, connect=5)
    async with Sdk.of(lab, kind, timeout=patience) as sdk:
        asking = asyncio.create_task(
            sdk.all(CREATE, model=sdk.model, messages=MESSAGES, max_tokens=8, stream=True)
        )
        await asyncio.sleep(silence_s)  # this is what is tested: nothing happens
        assert not asking.done()
        await lab.start_worker("w1")
        chunks = await asyncio.wait_for(asking, 60)
    assert len(texts_of(chunks)[0].split()) == 8


@pytest.mark.shows("chat-worker-killed")
@pytest.mark.parametrize(("kind", "n"), [("async", 1), ("sync", 2)])
async def test_a_worker_killed_mid_stream_is_never_taken_for_the_end(lab: Lab, kind: Any, n: int) -> None:
    await asyncio.gather(lab.start_api(), lab.start_control())
    victim = await lab.start_worker("w1")
    fields: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 100, "n": n}
    fields["extra_body"] = {"ignore_eos": True}
    async with Sdk.of(lab, kind) as sdk:
        asking = asyncio.create_task(sdk.all(CREATE, model=sdk.model, stream=True, **fields))

        async def streaming() -> bool:
            return lab.query("SELECT state FROM tasks") == [("in_progress",)]

        await eventually_async(streaming)
        await asyncio.sleep(1.0)  # some of the 5 s that it takes
        assert not asking.done()
        await victim.kill()
        await lab.start_worker("w2")
        if n == 1:  # goes on after what was sent
            chunks = await asyncio.wait_for(asking, 60)
            plain = await sdk.do(CREATE, model=sdk.model, **fields)
            assert texts_of(chunks)[0] == plain.choices[0].message.content
            assert chunks[-1].choices[0].finish_reason == "length"
        else:  # can't go on, and what was sent can't be taken back
            with pytest.raises(openai.APIError, match="started again"):
                await asyncio.wait_for(asking, 60)


@pytest.mark.shows("chat-retried")
async def test_two_refusals_are_waited_out_by_the_clients_own_retries(lab: Lab) -> None:
    lab.settings |= {"HEADRACE_SYNC_START_S": "1"}
    await asyncio.gather(lab.start_api(), lab.start_control())
    statuses: list[int] = []
    worker: list[asyncio.Task[Any]] = []

    async def heard(response: httpx.Response) -> None:
        statuses.append(response.status_code)
        if len(statuses) == 2:  # before the client's third try, which it makes after Retry-After
            worker.append(asyncio.create_task(lab.start_worker("w1")))

    transport = httpx.AsyncClient(event_hooks={"response": [heard]}, timeout=30)
    client = AsyncOpenAI(base_url=f"{lab.api_url}/v1", api_key=lab.api_key, http_client=transport)
    async with client:
        answer = await client.chat.completions.create(model=lab.model, messages=MESSAGES, max_tokens=3)
    await asyncio.gather(*worker)
    assert statuses == [503, 503, 200]
    assert answer.choices[0].message.content
