"""Nasty inputs and their answers; after all of them the API still answers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from core.scopes import Scope
from tests.api.conftest import Counter
from tests.security.routes import NO_BODY, ROWS
from tests.support.stacks import SharedStack
from tests.support.tenants import other_tenant

MESSAGES: Any = [{"role": "user", "content": "hi"}]
# The role × route table is complete: what is added there is asked here too.
_PLAIN = [row for row in ROWS if "{" not in row.path and row.scope in (Scope.SUBMIT, Scope.READ)]
POSTS = [
    row.path for row in _PLAIN if (row.method, row.owner) == ("POST", NO_BODY) and row.path != "/v1/files"
]
LISTS = [row.path for row in _PLAIN if "after=" in row.query]
JSON = {"Content-Type": "application/json"}


class Fetches:
    """A server that counts who asks it."""

    def __init__(self) -> None:
        self.count, self.url = 0, ""


@pytest.fixture
async def fetches() -> AsyncIterator[Fetches]:
    found = Fetches()

    async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.count += 1
        writer.close()

    server = await asyncio.start_server(asked, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/image.png"
    yield found
    server.close()


@pytest.fixture
def model(deterministic_stack: SharedStack) -> str:
    return deterministic_stack.model


@pytest.fixture(autouse=True)
async def nothing_is_accepted(
    deterministic_stack: SharedStack, http: httpx.AsyncClient
) -> AsyncIterator[None]:
    """What is refused costs no queue place, and the API goes on."""
    count = Counter(deterministic_stack.database_url)
    before = count()
    yield
    assert count() == before
    assert (await http.get("/v1/models")).status_code == 200


def refused(answer: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    if param is not None:
        assert (error["param"] or "").startswith(param), answer.text
    if code is not None:
        assert error["code"] == code, answer.text


def chat(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES} | fields


@pytest.mark.shows("input-nan")
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("url", POSTS)
async def test_what_is_no_number_is_refused(
    http: httpx.AsyncClient, model: str, url: str, value: str
) -> None:
    body = json.dumps(chat(model, temperature=0)).replace('"temperature": 0', f'"temperature": {value}')
    refused(await http.post(url, content=body, headers=JSON), 400)


@pytest.mark.shows("input-surrogate")
@pytest.mark.parametrize("url", POSTS)
async def test_a_lone_surrogate_is_refused(http: httpx.AsyncClient, model: str, url: str) -> None:
    body = json.dumps(chat(model)).replace('"hi"', r'"\ud800"')
    refused(await http.post(url, content=body, headers=JSON), 400, code="invalid_json")


@pytest.mark.shows("input-duplicate-keys")
@pytest.mark.parametrize("url", POSTS)
async def test_a_key_that_stands_twice_is_refused_by_its_name(
    http: httpx.AsyncClient, model: str, url: str
) -> None:
    text = json.dumps(chat(model, user="a: b"))
    for body, key in (
        (text[:-1] + ', "model": "other"}', "model"),
        (text.replace('"role"', '"content": ":", "role"'), "content"),
        (text.replace('"user":', '"m\\u006fdel": "x", "user":'), "model"),
    ):
        refused(await http.post(url, content=body, headers=JSON), 400, key, "duplicate_parameter")


@pytest.mark.shows("input-nesting")
@pytest.mark.parametrize("url", POSTS)
async def test_bottomless_nesting_is_refused_at_once(http: httpx.AsyncClient, model: str, url: str) -> None:
    began = time.monotonic()
    for opening, ending in (("[", "]"), ('{"a":', "}")):
        for body in (opening * 200_000, '{"model":' + opening * 600 + "1" + ending * 600 + "}"):
            refused(await http.post(url, content=body, headers=JSON), 400)
    assert time.monotonic() - began < 10


@pytest.mark.shows("input-content-type")
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
@pytest.mark.parametrize("url", POSTS)
async def test_another_content_type_is_refused(
    http: httpx.AsyncClient, model: str, url: str, kind: str
) -> None:
    answer = await http.post(url, content=json.dumps(chat(model)), headers={"Content-Type": kind})
    refused(answer, 415, code="unsupported_media_type")


@pytest.mark.shows("input-oversized")
@pytest.mark.parametrize("url", POSTS)
async def test_an_oversized_body_is_refused_also_when_its_length_is_not_told(
    http: httpx.AsyncClient, model: str, url: str
) -> None:
    body = json.dumps(chat(model, user="x" * (4 * 1024 * 1024))).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 65536):
            yield body[at : at + 65536]

    refused(await http.post(url, content=body, headers=JSON), 413)
    # the server closes before all is sent: the refusal may be lost with what was still under way
    with suppress(httpx.WriteError, httpx.ReadError):
        refused(await http.post(url, content=pieces(), headers=JSON), 413)


@pytest.mark.shows("input-values")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": [""]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 2.0}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": "hi"}, "messages"),
        ({"metadata": {"a": 5}}, "metadata"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"chat_template_kwargs": {"tokenize": False}}, "messages"),
    ],
)
async def test_a_value_out_of_range_is_refused_by_its_name(
    http: httpx.AsyncClient, model: str, fields: dict[str, Any], param: str
) -> None:
    refused(await http.post("/v1/chat/completions", json=chat(model, **fields)), 400, param)
    task = {"url": "/v1/chat/completions", "body": chat(model, **fields)}
    refused(await http.post("/v1/tasks", json=task), 400, f"body.{param}")


@pytest.mark.shows("input-stream-options")
@pytest.mark.parametrize("stream", [None, False])
async def test_options_of_a_stream_need_a_stream(
    http: httpx.AsyncClient, model: str, stream: bool | None
) -> None:
    body = chat(model, stream=stream, stream_options={"include_usage": True})
    refused(await http.post("/v1/chat/completions", json=body), 400, "stream_options")


@pytest.mark.shows("input-images")
@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "data:image/png;base64,AAAA", None],
)
async def test_an_image_is_refused_and_not_fetched(
    http: httpx.AsyncClient, model: str, url: str | None, fetches: Fetches
) -> None:
    part = {"type": "image_url", "image_url": {"url": url or fetches.url}}
    body = chat(model, messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, part]}])
    refused(await http.post("/v1/chat/completions", json=body), 400, "messages[0].content[1]")
    refused(
        await http.post("/v1/tasks", json={"url": "/v1/chat/completions", "body": body}),
        400,
        "body.messages[0].content[1]",
    )
    assert fetches.count == 0


@pytest.mark.shows("input-limits")
@pytest.mark.parametrize("limit", ["0", "-1", "101", "5.0", "1e1", "x", "", "1_0", " 5"])
@pytest.mark.parametrize("path", LISTS)
async def test_a_limit_that_is_none_is_refused_by_its_name(
    http: httpx.AsyncClient, path: str, limit: str
) -> None:
    refused(await http.get(path, params={"limit": limit}), 400, "limit")


@pytest.mark.parametrize("wait", ["1.5", "-1", "soon", "", "1e3"])
async def test_a_preference_that_is_no_time_is_refused(
    http: httpx.AsyncClient, model: str, wait: str
) -> None:
    task = {"url": "/v1/chat/completions", "body": chat(model)}
    answer = await http.post("/v1/tasks", json=task, headers={"Prefer": f"respond-async, wait={wait}"})
    refused(answer, 400, "Prefer")


@pytest.mark.shows("input-too-long")
@pytest.mark.parametrize(
    ("url", "prompt", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 9000}]}, "messages"),
        ("/v1/completions", {"prompt": "word " * 9000}, "prompt"),
        ("/v1/completions", {"prompt": [70] * 5000}, "prompt"),
    ],
)
async def test_a_prompt_over_the_context_is_refused_with_both_numbers(
    http: httpx.AsyncClient, model: str, url: str, prompt: dict[str, Any], param: str
) -> None:
    for path, body, within in (
        (url, {"model": model} | prompt, ""),
        ("/v1/tasks", {"url": url, "body": {"model": model} | prompt}, "body."),
    ):
        answer = await http.post(path, json=body)
        refused(answer, 400, within + param, "context_length_exceeded")
        numbers = [
            int(word) for word in answer.json()["error"]["message"].replace("(", "").split() if word.isdigit()
        ]
        assert 4096 in numbers and max(numbers) > 4096


@pytest.mark.shows("input-others-ids")
async def test_another_tenants_ids_are_as_unknown_as_those_that_never_were(
    deterministic_stack: SharedStack, http: httpx.AsyncClient
) -> None:
    newest = (await http.get("/v1/tasks", params={"limit": 1})).json()["data"]
    theirs = newest[0]["id"] if newest else "task_" + "0" * 26
    async with other_tenant(deterministic_stack) as stranger:
        for method, path in (
            ("GET", "/v1/tasks/{}"),
            ("GET", "/v1/tasks/{}/events"),
            ("POST", "/v1/tasks/{}/cancel"),
            ("POST", "/v1/tasks/{}/retry"),
            ("GET", "/v1/tasks?after={}"),
        ):
            bodies = []
            for task_id in (theirs, "task_" + "z" * 26):
                answer = await stranger.request(method, path.format(task_id))
                refused(answer, 404)
                bodies.append(answer.text.replace(task_id, "ID"))
            assert len(set(bodies)) == 1, path
