"""Webhooks over HTTP: secrets, what may be told where, and the log."""

from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.api.test_tasks import body_of
from tests.batches.lines import jsonl, request, upload
from tests.support.receiver import Receiver
from tests.support.stacks import SharedStack as Stack
from tests.support.waiting import eventually_async


async def secret(http: httpx.AsyncClient) -> str:
    answer = await http.post("/v1/webhooks/secrets", json={})
    assert answer.status_code == 201, answer.text
    text: str = answer.json()["secret"]
    return text


@pytest.mark.shows("webhooks-verified")
async def test_the_end_of_a_task_and_of_a_response_reach_their_receiver(
    http: httpx.AsyncClient, stack: Stack, openai: AsyncOpenAI
) -> None:
    text = await secret(http)
    async with Receiver() as receiver:
        task = (await http.post("/v1/tasks", json=body_of(stack) | {"webhook": receiver.url})).json()
        response = await openai.responses.create(
            model=stack.model, input="x", background=True, extra_body={"webhook": receiver.url}
        )
        got = await receiver.received(2)
        for one in got:
            openai.webhooks.verify_signature(one.body, one.headers, secret=text)
        unwrapped: list[Any] = [openai.webhooks.unwrap(one.body, one.headers, secret=text) for one in got]
        events = {event.data.id: event.type for event in unwrapped}
    assert events == {task["id"]: "task.completed", response.id: "response.completed"}

    async def logged() -> bool:
        answer = await http.get("/v1/webhooks/deliveries", params={"task": task["id"]})
        return [one["status"] for one in answer.json()["data"]] == ["delivered"]

    await eventually_async(logged, 10.0, "the delivery is in the log")
    (one,) = (await http.get("/v1/webhooks/deliveries", params={"task": task["id"]})).json()["data"]
    assert [(tried["status_code"], tried["error"]) for tried in one["attempts"]] == [(200, None)]
    page = (await http.get("/v1/webhooks/deliveries", params={"limit": 1})).json()
    assert (len(page["data"]), page["has_more"]) == (1, True)
    rest = (await http.get("/v1/webhooks/deliveries", params={"after": page["last_id"]})).json()
    assert page["last_id"] not in [one["id"] for one in rest["data"]]


@pytest.mark.shows("webhooks-of-batches")
async def test_the_end_of_a_batch_reaches_its_receiver(
    http: httpx.AsyncClient, stack: Stack, openai: AsyncOpenAI
) -> None:
    text = await secret(http)
    good = await upload(openai, jsonl([request(stack.model, "a", "Tell me.", max_tokens=4)]))
    bad = await upload(openai, b"no json\n")
    async with Receiver() as receiver:
        told: dict[str, str] = {}
        for file_id, kind in ((good, "batch.completed"), (bad, "batch.failed")):
            batch = await openai.batches.create(
                input_file_id=file_id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                extra_body={"webhook": receiver.url},
            )
            told[batch.id] = kind
        got = await receiver.received(2)
        events: list[Any] = [openai.webhooks.unwrap(one.body, one.headers, secret=text) for one in got]
    assert {event.data.id: event.type for event in events} == told
    done = await openai.batches.retrieve(next(iter(told)))
    assert (await openai.files.content(str(done.output_file_id))).text.count("\n") == 1

    async def logged() -> bool:
        found = [(await http.get("/v1/webhooks/deliveries", params={"batch": id_})).json() for id_ in told]
        return [(one["status"], one["type"]) for page in found for one in page["data"]] == [
            ("delivered", kind) for kind in told.values()
        ]

    await eventually_async(logged, 10.0, "the deliveries are in the log")
    answer = await http.get("/v1/webhooks/deliveries", params={"batch": "nonsense"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "batch")


async def test_a_batchs_webhook_that_nothing_would_be_sent_to_is_refused_by_its_field(
    http: httpx.AsyncClient,
) -> None:
    asked = {"input_file_id": "file_x", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = await http.post("/v1/batches", json=asked | {"webhook": "ftp://example.com/"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "webhook")


async def test_secrets_are_listed_without_their_text_and_ended(http: httpx.AsyncClient) -> None:
    await secret(http)
    newest = (await http.get("/v1/webhooks/secrets")).json()["data"][0]
    assert set(newest) == {"id", "object", "created_at", "expires_at"}
    await secret(http)
    before = {one["id"]: one for one in (await http.get("/v1/webhooks/secrets")).json()["data"]}
    assert before[newest["id"]]["expires_at"] is not None  # a day of both
    assert (await http.delete(f"/v1/webhooks/secrets/{newest['id']}")).status_code == 200
    assert newest["id"] not in [one["id"] for one in (await http.get("/v1/webhooks/secrets")).json()["data"]]
    assert (await http.delete(f"/v1/webhooks/secrets/{newest['id']}")).status_code == 404
    too_long = await http.post("/v1/webhooks/secrets", json={"overlap_s": 10**9})
    assert (too_long.status_code, too_long.json()["error"]["param"]) == (400, "overlap_s")


@pytest.mark.parametrize("url", ["ftp://example.com/", "https://a:b@example.com/", "https://", "x"])
async def test_a_url_that_is_none_is_refused_by_its_field(
    http: httpx.AsyncClient, stack: Stack, url: str
) -> None:
    answer = await http.post("/v1/tasks", json=body_of(stack) | {"webhook": url})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "webhook")


async def test_a_webhook_of_a_response_that_is_waited_for_is_refused(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    body = {"model": stack.model, "input": "x", "webhook": "https://example.com/"}
    answer = await http.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "webhook")
