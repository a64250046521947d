"""/v1/batches as the official client and a plain one see it, on the engine that makes up its text."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from redis.asyncio import Redis

from storage.wakes import News, channel, heard
from tests.batches.lines import ended, jsonl, request, results, upload
from tests.support.stacks import SharedStack as Stack
from tests.support.tenants import other_tenant
from tests.support.waiting import eventually, eventually_async


async def start(openai: AsyncOpenAI, content: bytes, **options: Any) -> Any:
    fields = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | options
    return await openai.batches.create(input_file_id=await upload(openai, content), **fields)


async def test_a_batch_runs_to_its_end_and_every_custom_id_has_one_result(
    openai: AsyncOpenAI, stack: Stack
) -> None:
    wanted = [request(stack.model, f"id-{i}", f"Question {i}", max_tokens=3 + i % 4) for i in range(30)]
    batch = await start(openai, jsonl(wanted), metadata={"for": "test"})
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"for": "test"})
    assert batch.expires_at == batch.created_at + 24 * 3600
    done = await ended(openai, batch.id)
    assert (done.status, done.model, done.errors) == ("completed", stack.model, None)
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed, done.error_file_id) == (30, 30, 0, None)
    found = await results(openai, done.output_file_id)
    assert [line["custom_id"] for line in found] == [line["custom_id"] for line in wanted]
    for line, asked in zip(found, wanted, strict=True):
        assert line["id"].startswith("batch_req_") and line["error"] is None
        assert line["response"]["status_code"] == 200 and line["response"]["request_id"]
        body = line["response"]["body"]
        assert body["object"] == "chat.completion"
        assert body["usage"]["completion_tokens"] == asked["body"]["max_tokens"]
    usages = [line["response"]["body"]["usage"] for line in found]
    assert done.usage.input_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert done.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages)
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    output = await openai.files.retrieve(done.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")


async def test_who_makes_or_cancels_a_batch_tells_the_control_process(
    openai: AsyncOpenAI, stack: Stack
) -> None:
    redis = Redis.from_url(stack.broker_url)
    prefix = stack.environment.get("HEADRACE_KEY_PREFIX", "hr")
    told = Counter[News]()

    async def hear() -> None:
        async for news in heard(redis, prefix):
            told[news] += 1

    async def listening() -> bool:
        # the control process, and this test
        return bool((await redis.pubsub_numsub(channel(prefix)))[0][1] >= 2)

    hearing = asyncio.create_task(hear())
    await eventually_async(listening, what="the channel is heard")
    # none of its lines reaches a worker: workers tell it too, when they have no batch work left
    batch = await start(openai, jsonl([request(stack.model, "a", "Hello", temperature=9)]))
    await eventually(lambda: told[News.BATCHES] >= 1, what="news of the new batch")
    await ended(openai, batch.id)
    before = told[News.BATCHES]
    await openai.batches.cancel(batch.id)
    await eventually(lambda: told[News.BATCHES] > before, what="news of the cancel")
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
    await redis.aclose()


async def test_bad_requests_fail_alone_with_their_status_and_place(openai: AsyncOpenAI, stack: Stack) -> None:
    wanted = [
        request(stack.model, "good", "Hello", max_tokens=2),
        request(stack.model, "hot", "Hello", temperature=9),
        request(stack.model, "long", "word " * 9000),
        request(stack.model, "stream", "Hello", stream=True),
        request(stack.model, "unknown", "Hello", colour="red"),
        request(stack.model, "fault", "<<fault:reject>>", max_tokens=2),
    ]
    done = await ended(openai, (await start(openai, jsonl(wanted))).id)
    assert done.status == "completed"
    good = await results(openai, done.output_file_id)
    bad = {line["custom_id"]: line for line in await results(openai, done.error_file_id)}
    assert "good" in {line["custom_id"] for line in good}
    assert {"hot", "long", "stream", "unknown"} <= set(bad)
    assert len(good) + len(bad) == done.request_counts.total == 6
    assert (done.request_counts.completed, done.request_counts.failed) == (len(good), len(bad))
    for custom_id, code, param in (
        ("hot", "invalid_value", "temperature"),
        ("long", "context_length_exceeded", "messages"),
        ("stream", "invalid_value", "stream"),
        ("unknown", "unknown_parameter", "colour"),
    ):
        line = bad[custom_id]
        assert line["error"] is None and line["response"]["status_code"] == 400
        error = line["response"]["body"]["error"]
        assert (error["code"], error["param"]) == (code, param)


async def test_a_batch_of_which_everything_failed_is_completed_without_output(
    openai: AsyncOpenAI, stack: Stack
) -> None:
    wanted = [request(stack.model, f"id-{i}", "Hello", n=0) for i in range(3)]
    done = await ended(openai, (await start(openai, jsonl(wanted))).id)
    assert (done.status, done.output_file_id) == ("completed", None)
    assert done.request_counts.failed == 3
    assert len(await results(openai, done.error_file_id)) == 3


async def test_marks_line_ends_and_blank_lines_of_any_system_are_taken(
    openai: AsyncOpenAI, stack: Stack
) -> None:
    lines = [json.dumps(request(stack.model, f"id-{i}", "Hello", max_tokens=1)) for i in range(2)]
    content = b"\xef\xbb\xbf\r\n" + lines[0].encode() + b"\r\n\r\n  \n" + lines[1].encode()
    done = await ended(openai, (await start(openai, content)).id)
    assert (done.status, done.request_counts.completed) == ("completed", 2)


def at(model: str, place: int, what: str | dict[str, Any]) -> bytes:
    """Good lines, and at one place what is given."""
    lines = [json.dumps(request(model, f"id-{i}", "Hello")) for i in range(4)]
    lines[place] = what if isinstance(what, str) else json.dumps(what)
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("place", "what", "code", "line"),
    [
        (2, "{", "invalid_json_line", 3),
        (2, "[1]", "invalid_json_line", 3),
        (2, "null", "invalid_json_line", 3),
        (
            3,
            '{"a": "' + "\ud800".encode("utf-8", "surrogatepass").decode("latin-1") + '"',
            "invalid_json_line",
            4,
        ),
        (1, '{"custom_id": "id-1", "custom_id": "id-2"}', "invalid_json_line", 2),
        (1, {"custom_id": "id-0"}, "duplicate_custom_id", 2),
        (1, {"custom_id": None}, "missing_required_parameter", 2),
        (1, {"custom_id": 5}, "invalid_value", 2),
        (1, {"url": "/v1/embeddings"}, "url_mismatch", 2),
        (1, {"method": "GET"}, "invalid_value", 2),
        (1, {"body": []}, "invalid_value", 2),
        (1, {"body": {"model": "other"}}, "model_mismatch", 2),
        (0, {"body": {"model": "org/absent"}}, "model_not_found", 1),
        (1, {"colour": "red"}, "unknown_parameter", 2),
    ],
)
async def test_a_malformed_line_fails_the_batch_with_its_number(
    openai: AsyncOpenAI, stack: Stack, place: int, what: str | dict[str, Any], code: str, line: int
) -> None:
    if isinstance(what, dict):
        what = request(stack.model, f"id-{place}", "Hello") | what
    done = await ended(openai, (await start(openai, at(stack.model, place, what))).id)
    assert done.status == "failed" and done.failed_at is not None
    assert done.errors.object == "list"
    first = done.errors.data[0]
    assert (first.code, first.line) == (code, line)
    assert first.message
    assert (done.output_file_id, done.error_file_id, done.request_counts.total) == (None, None, 0)


@pytest.mark.parametrize("content", [b"", b"\r\n\n  \n", b"\xef\xbb\xbf"])
async def test_a_file_without_a_request_fails(openai: AsyncOpenAI, content: bytes) -> None:
    done = await ended(openai, (await start(openai, content)).id)
    assert (done.status, done.errors.data[0].code) == ("failed", "empty_file")


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"endpoint": "/v1/nonsense"}, 400, "endpoint"),
        ({"completion_window": "soon"}, 400, "completion_window"),
        ({"completion_window": "31d"}, 400, "completion_window"),
        ({"input_file_id": "file-" + "0" * 26}, 404, "input_file_id"),
        ({"input_file_id": "nonsense"}, 404, "input_file_id"),
        ({"input_file_id": 5}, 400, "input_file_id"),
        ({"metadata": {"a": 5}}, 400, "metadata.a"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
            400,
            "output_expires_after.seconds",
        ),
        ({"colour": "red"}, 400, "colour"),
    ],
)
async def test_a_bad_batch_is_refused_at_once_by_name(
    openai: AsyncOpenAI,
    http: httpx.AsyncClient,
    stack: Stack,
    change: dict[str, Any],
    status: int,
    param: str,
) -> None:
    file_id = await upload(openai, jsonl([request(stack.model, "a", "Hello")]))
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = await http.post("/v1/batches", json=body | change)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


async def test_a_file_of_another_purpose_is_refused(openai: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    file = await openai.files.create(file=("a.jsonl", b"x"), purpose="user_data")
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = await http.post("/v1/batches", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_file_id")


async def test_pages_of_batches_follow_one_another_to_the_end(openai: AsyncOpenAI, stack: Stack) -> None:
    file_id = await upload(openai, b"{")
    fields: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = [(await openai.batches.create(input_file_id=file_id, **fields)).id for _ in range(7)]
    seen = [batch.id async for batch in openai.batches.list(limit=3)]
    assert seen[:7] == made[::-1]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("limit", ["0", "-1", "101"])
async def test_a_bad_limit_of_batches_is_refused(http: httpx.AsyncClient, limit: str) -> None:
    answer = await http.get(f"/v1/batches?limit={limit}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


async def test_a_retried_create_is_the_batch_of_the_first_try(
    openai: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    file_id = await upload(openai, b"{")
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}

    async def create(**headers: str) -> httpx.Response:
        return await http.post("/v1/batches", json=body, headers=headers)

    first = await create(**{"x-stainless-retry-count": "0"})
    again = await create(**{"x-stainless-retry-count": "1"})
    on_purpose = await create(**{"x-stainless-retry-count": "0"})
    assert first.json()["id"] == again.json()["id"] != on_purpose.json()["id"]
    keyed = [await create(**{"Idempotency-Key": file_id}) for _ in range(2)]
    assert keyed[0].content == keyed[1].content
    body["completion_window"] = "1h"
    assert (await create(**{"Idempotency-Key": file_id})).status_code == 422


async def test_a_stranger_s_batch_and_file_are_as_unknown_as_made_up_ones(
    openai: AsyncOpenAI, stack: Stack
) -> None:
    batch = await start(openai, b"{")
    made_up = "batch_" + "0" * 26
    async with other_tenant(stack) as stranger:
        for method, path in (
            ("GET", f"/v1/batches/{batch.id}"),
            ("POST", f"/v1/batches/{batch.id}/cancel"),
            ("GET", f"/v1/batches?after={batch.id}"),
        ):
            answer = await stranger.request(method, path)
            unknown = await stranger.request(method, path.replace(batch.id, made_up))
            assert answer.status_code == unknown.status_code == 404
            assert answer.text == unknown.text.replace(made_up, batch.id)
        body = {
            "input_file_id": batch.input_file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        assert (await stranger.post("/v1/batches", json=body)).status_code == 404


def slow(model: str, count: int) -> bytes:
    """Lines of which the first end within a second and the others take a while."""
    return jsonl(
        [
            request(model, f"id-{i}", f"Question {i}", max_tokens=2 if i < 5 else 1500, ignore_eos=True)
            for i in range(count)
        ]
    )


async def test_a_cancelled_batch_keeps_what_was_done_and_names_the_rest(
    openai: AsyncOpenAI, http: httpx.AsyncClient, stack: Stack
) -> None:
    batch = await start(openai, slow(stack.model, 12))

    async def some_done() -> bool:
        return bool((await openai.batches.retrieve(batch.id)).request_counts.completed >= 5)

    await eventually_async(some_done, 30, "five lines are done")
    cancelling = await openai.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled") and cancelling.cancelling_at is not None
    assert (await http.post(f"/v1/batches/{batch.id}/cancel")).status_code == 200
    done = await ended(openai, batch.id)
    assert done.status == "cancelled" and done.cancelled_at >= done.cancelling_at
    good = await results(openai, done.output_file_id)
    rest = await results(openai, done.error_file_id)
    assert {line["custom_id"] for line in good} >= {f"id-{i}" for i in range(5)}
    assert sorted(line["custom_id"] for line in good + rest) == sorted(f"id-{i}" for i in range(12))
    assert {line["error"]["code"] for line in rest} == {"batch_cancelled"}
    assert done.request_counts.completed == len(good)
    again = await openai.batches.cancel(batch.id)
    assert again == done


async def test_a_batch_past_its_window_expires_with_what_was_done(openai: AsyncOpenAI, stack: Stack) -> None:
    batch = await start(openai, slow(stack.model, 12), completion_window="7s")
    done = await ended(openai, batch.id)
    assert done.status == "expired" and done.expires_at == done.created_at + 7
    assert (
        done.expired_at is not None
    )  # at the end of the window, or once no line that is left can be in time
    good = await results(openai, done.output_file_id)
    rest = await results(openai, done.error_file_id)
    assert sorted(line["custom_id"] for line in good + rest) == sorted(f"id-{i}" for i in range(12))
    assert {line["custom_id"] for line in good} >= {f"id-{i}" for i in range(5)}
    assert {line["error"]["code"] for line in rest} == {"batch_expired"}
    assert all(line["response"] is None for line in rest)


async def test_an_input_deleted_while_it_runs_changes_nothing(openai: AsyncOpenAI, stack: Stack) -> None:
    wanted = [request(stack.model, f"id-{i}", "Hello", max_tokens=2) for i in range(3)]
    batch = await start(openai, jsonl(wanted))
    await openai.files.delete(batch.input_file_id)
    done = await ended(openai, batch.id)
    assert (done.status, done.request_counts.completed) == ("completed", 3)
