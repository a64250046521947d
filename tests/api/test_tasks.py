"""/v1/tasks: submit, poll, list, cancel, and the stream of events."""

import asyncio
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.api.conftest import Counter
from tests.support.sse import read_events, text_of
from tests.support.stacks import SharedStack as Stack
from tests.support.waiting import eventually_async

FINAL = {"completed", "failed", "incomplete", "cancelled", "expired"}


def body_of(stack: Stack, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me about weirs."}]
    return {
        "url": "/v1/chat/completions",
        "body": {"model": stack.model, "messages": messages, "max_tokens": 8} | body,
    }


async def submit(
    http: httpx.AsyncClient, stack: Stack, *, headers: dict[str, str] | None = None, **body: Any
) -> dict[str, Any]:
    answer = await http.post("/v1/tasks", json=body_of(stack, **body), headers=headers)
    assert answer.status_code in (200, 202), answer.text
    task: dict[str, Any] = answer.json()
    return task


async def final(http: httpx.AsyncClient, task_id: str, within_s: float = 15.0) -> dict[str, Any]:
    async def is_final() -> bool:
        return (await http.get(f"/v1/tasks/{task_id}")).json()["status"] in FINAL

    await eventually_async(is_final, within_s, f"{task_id} is final")
    task: dict[str, Any] = (await http.get(f"/v1/tasks/{task_id}")).json()
    return task


async def test_a_task_is_accepted_polled_and_completed(http: httpx.AsyncClient, stack: Stack) -> None:
    answer = await http.post("/v1/tasks", json=body_of(stack) | {"metadata": {"job": "7"}})
    assert answer.status_code == 202
    task = answer.json()
    assert answer.headers["location"] == f"/v1/tasks/{task['id']}"
    assert answer.headers["retry-after"] == "1"
    assert task["object"] == "task"
    assert task["metadata"] == {"job": "7"}
    done = await final(http, task["id"])
    assert done["status"] == "completed"
    assert done["response"]["choices"][0]["message"]["content"]
    assert done["usage"]["completion_tokens"] == 8
    assert done["cost_usd_micros"] > 0
    assert done["timings"]["total_ms"] >= done["timings"]["queued_ms"]


async def test_the_events_add_up_to_the_response(http: httpx.AsyncClient, stack: Stack) -> None:
    task = await submit(http, stack, max_tokens=12)
    events = [event async for event in read_events(http, f"/v1/tasks/{task['id']}/events")]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert [events[0]["type"], events[1]["type"], events[-1]["type"]] == [
        "task.queued",
        "task.started",
        "task.completed",
    ]
    response = (await final(http, task["id"]))["response"]
    assert text_of(events) == response["choices"][0]["message"]["content"]
    assert events[-1]["usage"] == response["usage"]


@pytest.mark.parametrize("by", ["header", "query"])
async def test_a_stream_resumes_after_any_cursor(http: httpx.AsyncClient, stack: Stack, by: str) -> None:
    task = await submit(http, stack)
    path = f"/v1/tasks/{task['id']}/events"
    whole = [event async for event in read_events(http, path)]
    for cursor in range(1, len(whole)):
        if by == "header":
            rest = [event async for event in read_events(http, path, {"Last-Event-ID": str(cursor)})]
        else:
            rest = [event async for event in read_events(http, f"{path}?starting_after={cursor}")]
        assert rest == whole[cursor:]


async def test_a_live_stream_that_is_cut_resumes_without_gap_or_repeat(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    task = await submit(http, stack, max_tokens=60)
    path = f"/v1/tasks/{task['id']}/events"
    seen: list[dict[str, Any]] = []
    async for event in read_events(http, path):
        seen.append(event)
        if len(seen) == 9:
            break
    seen += [event async for event in read_events(http, f"{path}?starting_after={seen[-1]['sequence']}")]
    assert [event["sequence"] for event in seen] == list(range(1, len(seen) + 1))
    assert text_of(seen) == (await final(http, task["id"]))["response"]["choices"][0]["message"]["content"]


@pytest.mark.shows("tasks-events-end")
async def test_a_cursor_at_the_end_has_no_content(http: httpx.AsyncClient, stack: Stack) -> None:
    task = await submit(http, stack)
    path = f"/v1/tasks/{task['id']}/events"
    last = [event async for event in read_events(http, path)][-1]["sequence"]
    assert (await http.get(f"{path}?starting_after={last}")).status_code == 204


@pytest.mark.shows("tasks-events-end")
async def test_a_cursor_beyond_the_end_is_of_a_stream_that_was_lost(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    task = await submit(http, stack, max_tokens=3000)
    path = f"/v1/tasks/{task['id']}/events"
    async for event in read_events(http, path):
        if event["type"] == "task.delta":
            break
    answer = await http.get(f"{path}?starting_after=999999")
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "events_expired")
    await http.post(f"/v1/tasks/{task['id']}/cancel")
    last = [event async for event in read_events(http, path)][-1]["sequence"]
    assert (await http.get(f"{path}?starting_after={last + 1}")).status_code == 204


@pytest.mark.shows("tasks-events-trimmed")
async def test_a_cursor_whose_events_are_no_longer_kept_is_gone(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    task = await submit(http, stack)
    path = f"/v1/tasks/{task['id']}/events"
    whole = [event async for event in read_events(http, path)]
    async with Redis.from_url(stack.streams_url) as redis:
        await redis.xtrim(f"hr:s:{task['id']}", minid="5-0", approximate=False)
    for cursor, status in ((0, 410), (2, 410), (3, 410), (4, 200), (len(whole), 204)):
        assert (await http.get(f"{path}?starting_after={cursor}")).status_code == status, cursor


@pytest.mark.parametrize("cursor", ["-1", "x", "1.5", "9" * 30])
async def test_a_cursor_that_is_none_is_refused(http: httpx.AsyncClient, stack: Stack, cursor: str) -> None:
    task = await submit(http, stack)
    answer = await http.get(f"/v1/tasks/{task['id']}/events", params={"starting_after": cursor})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "starting_after"


async def test_a_running_task_stops_within_two_seconds_of_its_cancel(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    task = await submit(http, stack, max_tokens=3000)
    path = f"/v1/tasks/{task['id']}"
    async for event in read_events(http, f"{path}/events"):
        if event["type"] == "task.delta":
            break
    first = await http.post(f"{path}/cancel")
    assert (first.status_code, first.json()["status"]) in [(202, "cancelling"), (200, "cancelled")]
    done = await final(http, task["id"], within_s=2.0)
    assert done["status"] == "cancelled"
    assert 0 < done["usage"]["completion_tokens"] < 3000
    assert done["response"]["choices"][0]["message"]["content"]
    again = await http.post(f"{path}/cancel")
    assert (again.status_code, again.json()) == (200, done)
    events = [event async for event in read_events(http, f"{path}/events")]
    assert events[-1]["type"] == "task.cancelled"
    assert text_of(events) == done["response"]["choices"][0]["message"]["content"]


@pytest.mark.shows("tasks-wait")
async def test_waiting_answers_with_the_finished_task(http: httpx.AsyncClient, stack: Stack) -> None:
    answer = await http.post("/v1/tasks", json=body_of(stack), headers={"Prefer": "wait=10"})
    assert answer.status_code == 200
    assert answer.json()["status"] == "completed"
    assert answer.headers["preference-applied"] == "wait=10"


async def test_waiting_too_short_answers_with_the_accepted_task(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    answer = await http.post(
        "/v1/tasks", json=body_of(stack, max_tokens=2000), headers={"Prefer": "wait=1, respond-async"}
    )
    assert answer.status_code == 202
    await http.post(f"/v1/tasks/{answer.json()['id']}/cancel")


async def test_every_character_that_json_can_carry_can_be_a_prompt(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    message = {"role": "user", "content": "".join(map(chr, [*range(0x300), 0xFFFE, 0x1F600]))}
    task = await submit(http, stack, messages=[message])
    assert (await final(http, task["id"]))["status"] == "completed"


@pytest.mark.shows("tasks-idempotent")
async def test_an_idempotency_key_names_one_task(
    http: httpx.AsyncClient, stack: Stack, accepted: Counter
) -> None:
    before = accepted()
    key = {"Idempotency-Key": "order 1"}
    answers = await asyncio.gather(
        *(http.post("/v1/tasks", json=body_of(stack), headers=key) for _ in range(8))
    )
    told = [answer for answer in answers if answer.status_code != 409]
    assert len({answer.content for answer in told}) == 1
    assert all(answer.headers["retry-after"] == "1" for answer in answers)
    await final(http, told[0].json()["id"])
    again = await http.post("/v1/tasks", json=body_of(stack), headers=key)
    assert (again.status_code, again.content) == (
        202,
        told[0].content,
    )  # what was told, though it is done now
    waited = await http.post("/v1/tasks", json=body_of(stack), headers=key | {"Prefer": "wait=5"})
    assert (waited.status_code, waited.json()["status"]) == (200, "completed")
    assert accepted() == before + 1
    other = await http.post("/v1/tasks", json=body_of(stack, max_tokens=9), headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


@pytest.mark.shows("tasks-retried")
async def test_a_client_that_says_it_tries_again_gets_the_task_of_its_first_try(
    http: httpx.AsyncClient, stack: Stack, accepted: Counter
) -> None:
    before = accepted()
    first, again, new = [
        await submit(http, stack, seed=77, headers={"x-stainless-retry-count": count})
        for count in ("0", "1", "0")
    ]
    assert first["id"] == again["id"] != new["id"]
    assert accepted() == before + 2


async def test_tasks_are_listed_in_pages_without_gap(http: httpx.AsyncClient, stack: Stack) -> None:
    made = [(await submit(http, stack))["id"] for _ in range(5)]
    found: list[str] = []
    page = (await http.get("/v1/tasks", params={"limit": 2})).json()
    while len(found) < 5:
        found += [task["id"] for task in page["data"]]
        assert page["last_id"] == found[-1]
        assert page["has_more"] or len(found) >= 5
        page = (await http.get("/v1/tasks", params={"limit": 2, "after": found[-1]})).json()
    assert found[:5] == made[::-1]
    newer = (await http.get("/v1/tasks", params={"order": "asc", "after": made[0]})).json()
    assert [task["id"] for task in newer["data"]] == made[1:]


async def test_a_deadline_that_passes_while_it_runs_keeps_the_partial_output(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    answer = await http.post("/v1/tasks", json=body_of(stack, max_tokens=3000) | {"deadline_s": 1.0})
    done = await final(http, answer.json()["id"])
    assert done["status"] == "incomplete"
    assert done["error"]["code"] == "deadline"
    assert done["response"]["choices"][0]["message"]["content"]


async def test_two_hundred_tasks_at_once_all_complete(http: httpx.AsyncClient, stack: Stack) -> None:
    tasks = await asyncio.gather(*(submit(http, stack, seed=i, temperature=0) for i in range(200)))
    assert len({task["id"] for task in tasks}) == 200
    done = await asyncio.gather(*(final(http, task["id"], within_s=30) for task in tasks))
    assert {task["status"] for task in done} == {"completed"}
    assert {task["attempt"] for task in done} == {1}


@pytest.mark.parametrize(
    "path", ["/v1/tasks/{id}", "/v1/tasks/{id}/events", "/v1/tasks?after={id}", "POST /v1/tasks/{id}/cancel"]
)
@pytest.mark.parametrize("task_id", ["task_" + "0" * 26, "nonsense", "task_%00"])
async def test_an_unknown_id_is_not_found_anywhere(http: httpx.AsyncClient, path: str, task_id: str) -> None:
    method, _, path = path.rpartition(" ")
    answer = await http.request(method or "GET", path.format(id=task_id))
    assert answer.status_code == 404, answer.text
    assert answer.json()["error"]["code"] == "task_not_found"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"url": "/v1/nonsense"}, "url"),
        ({"priority": "urgent"}, "priority"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": "5"}, "deadline_s"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "\0"}}, "metadata"),
        ({"metadata": {"\0": "a"}}, "metadata"),
        ({"body": []}, "body"),
        ({"colour": "red"}, "colour"),
        ({"webhook": "http://"}, "webhook"),
        ({"body": {"model": "m", "messages": [], "max_tokens": 5.0}}, "body."),
        (
            {"body": {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}},
            "body.stream",
        ),
        ({"body": {"model": "nope", "messages": [{"role": "user", "content": "x"}]}}, "body.model"),
    ],
)
async def test_a_wrong_field_is_refused_by_its_name(
    http: httpx.AsyncClient, stack: Stack, accepted: Counter, change: dict[str, Any], param: str
) -> None:
    before = accepted()
    answer = await http.post("/v1/tasks", json=body_of(stack) | change)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"].startswith(param)
    assert accepted() == before


async def test_a_state_that_is_none_is_refused_by_the_parameters_name(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/tasks", params={"status": "QUEUED"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "status")


@pytest.mark.parametrize("limit", ["0", "-1", "101", "x"])
async def test_a_page_size_out_of_bounds_is_refused(http: httpx.AsyncClient, limit: str) -> None:
    answer = await http.get("/v1/tasks", params={"limit": limit})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")
