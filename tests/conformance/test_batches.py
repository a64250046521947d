"""Files and batches by the official client, synchronous and asynchronous."""

import json
from typing import Any

import httpx2
import openai
import pytest

from tests.batches.lines import FINAL, jsonl, request
from tests.support.sdk import Sdk
from tests.support.stacks import SharedStack
from tests.support.waiting import eventually_async

CONTENT = bytes(range(256)) * 40


@pytest.mark.shows("files-round-trip")
async def test_a_file_is_stored_described_sent_back_and_deleted(sdk: Sdk) -> None:
    made = await sdk.do(
        "files.create",
        file=("data.bin", CONTENT),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert made.id.startswith("file-") and made.object == "file" and made.bytes == len(CONTENT)
    assert made.expires_at == made.created_at + 3600
    assert await sdk.do("files.retrieve", made.id) == made
    assert (await sdk.do("files.content", made.id)).read() == CONTENT
    assert (await sdk.do("files.delete", made.id)).deleted is True
    with pytest.raises(openai.NotFoundError):
        await sdk.do("files.retrieve", made.id)


@pytest.mark.shows("files-auto-page")
async def test_pages_of_files_end(sdk: Sdk) -> None:
    made = [(await sdk.do("files.create", file=(f"{i}", b"x"), purpose="vision")).id for i in range(25)]
    seen = [file.id for file in await sdk.all("files.list", limit=10, purpose="vision")]
    assert seen == made[::-1]
    for file_id in made:
        await sdk.do("files.delete", file_id)


async def create(sdk: Sdk, lines: list[dict[str, Any]], **options: Any) -> Any:
    file = await sdk.do("files.create", file=("input.jsonl", jsonl(lines)), purpose="batch")
    fields = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | options
    return await sdk.do("batches.create", input_file_id=file.id, **fields)


async def ended(sdk: Sdk, batch: Any) -> Any:
    found: list[Any] = []

    async def final() -> bool:
        found[:] = [await sdk.do("batches.retrieve", batch.id)]
        return found[0].status in FINAL

    await eventually_async(final, 60, f"{batch.id} ended")
    return found[0]


async def results(sdk: Sdk, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = (await sdk.do("files.content", file_id)).read()
    return [json.loads(line) for line in content.splitlines()]


@pytest.mark.shows("batch-happy")
async def test_a_batch_completes_with_one_line_a_request(sdk: Sdk) -> None:
    lines = [request(sdk.model, f"id-{i}", f"Hello {i}", max_tokens=4) for i in range(5)]
    done = await ended(sdk, await create(sdk, lines, metadata={"a": "b"}))
    assert (done.status, done.error_file_id, done.metadata) == ("completed", None, {"a": "b"})
    assert done.in_progress_at <= done.finalizing_at <= done.completed_at
    found = await results(sdk, done.output_file_id)
    assert [line["custom_id"] for line in found] == [line["custom_id"] for line in lines]
    assert {line["response"]["status_code"] for line in found} == {200}
    assert done.usage.output_tokens == 20


@pytest.mark.shows("batch-mixed")
async def test_failed_requests_are_in_the_error_file_with_their_status(sdk: Sdk) -> None:
    lines = [
        request(sdk.model, "good", "Hello", max_tokens=2),
        request(sdk.model, "bad", "Hello", temperature=9),
    ]
    done = await ended(sdk, await create(sdk, lines))
    (good,), (bad,) = await results(sdk, done.output_file_id), await results(sdk, done.error_file_id)
    assert (good["custom_id"], bad["custom_id"]) == ("good", "bad")
    assert bad["error"] is None and bad["response"]["status_code"] == 400
    assert bad["response"]["body"]["error"]["param"] == "temperature"
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 1)


@pytest.mark.shows("batch-all-fail")
async def test_a_batch_of_failures_is_completed_without_an_output_file(sdk: Sdk) -> None:
    done = await ended(sdk, await create(sdk, [request(sdk.model, "a", "Hello", n=0)]))
    assert (done.status, done.output_file_id) == ("completed", None)
    assert len(await results(sdk, done.error_file_id)) == 1


@pytest.mark.shows("batch-malformed")
@pytest.mark.parametrize("line", ["[1]", "null", "{"])
async def test_a_malformed_line_fails_the_batch_by_its_number(sdk: Sdk, line: str) -> None:
    content = jsonl([request(sdk.model, "a", "Hello")]) + line.encode()
    file = await sdk.do("files.create", file=("input.jsonl", content), purpose="batch")
    batch = await sdk.do(
        "batches.create",
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
    )
    done = await ended(sdk, batch)
    assert done.status == "failed"
    assert [(error.code, error.line) for error in done.errors.data] == [("invalid_json_line", 2)]


def endless(sdk: Sdk) -> list[dict[str, Any]]:
    return [
        request(sdk.model, f"id-{i}", f"Hello {i}", max_tokens=2 if i < 2 else 3000, ignore_eos=True)
        for i in range(6)
    ]


@pytest.mark.shows("batch-cancel")
async def test_a_batch_cancelled_in_the_middle_keeps_what_it_has(sdk: Sdk) -> None:
    batch = await create(sdk, endless(sdk))

    async def two() -> bool:
        return bool((await sdk.do("batches.retrieve", batch.id)).request_counts.completed == 2)

    await eventually_async(two, 30, "two lines are done")
    assert (await sdk.do("batches.cancel", batch.id)).status in ("cancelling", "cancelled")
    done = await ended(sdk, batch)
    assert done.status == "cancelled"
    assert await sdk.do("batches.cancel", batch.id) == done
    good, rest = await results(sdk, done.output_file_id), await results(sdk, done.error_file_id)
    assert (len(good), len(rest)) == (2, 4)
    assert {line["error"]["code"] for line in rest} == {"batch_cancelled"}


@pytest.mark.shows("batch-expiry")
async def test_a_batch_past_its_window_is_expired(sdk: Sdk) -> None:
    done = await ended(sdk, await create(sdk, endless(sdk), completion_window="6s"))
    assert done.status == "expired" and done.expired_at is not None
    rest = await results(sdk, done.error_file_id)
    assert {line["error"]["code"] for line in rest} == {"batch_expired"}
    assert len(await results(sdk, done.output_file_id)) + len(rest) == 6


@pytest.mark.shows("batch-create-once")
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_create_that_times_out_and_is_tried_again_makes_one_batch(
    deterministic_stack: SharedStack, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Sdk.of(deterministic_stack, kind, max_retries=2) as sdk:
        file = await sdk.do("files.create", file=("input.jsonl", b"{"), purpose="batch")
        before = {batch.id for batch in (await sdk.do("batches.list", limit=100)).data}
        answers = lose_answers(sdk, monkeypatch, 2)
        made = await sdk.do(
            "batches.create",
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        assert answers == [0, 0], "two answers came too late for the client"
        after = {batch.id for batch in (await sdk.do("batches.list", limit=100)).data}
    assert after - before == {made.id}


def lose_answers(sdk: Sdk, monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Have the client time out although its next requests are answered; the list fills as that happens."""
    lost: list[int] = []
    http = sdk.client._client
    send = http.send

    def late(request: Any, response: Any) -> Any:
        if request.method == "POST" and len(lost) < count:
            lost.append(0)
            raise httpx2.ReadTimeout("too late", request=request)
        return response

    async def send_async(request: Any, **options: Any) -> Any:
        return late(request, await send(request, **options))

    def send_sync(request: Any, **options: Any) -> Any:
        return late(request, send(request, **options))

    asynchronous = isinstance(sdk.client, openai.AsyncOpenAI)
    monkeypatch.setattr(http, "send", send_async if asynchronous else send_sync)
    return lost
