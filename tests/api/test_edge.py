"""The edge: bodies that are no good, keys that open nothing, routes that don't exist."""

import httpx
import pytest

from tests.api.conftest import Counter
from tests.support.stacks import SharedStack as Stack

CHAT = "/v1/chat/completions"
ROUTES = [
    ("POST", CHAT),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m"),
    ("POST", "/v1/tasks"),
    ("GET", "/v1/tasks"),
    ("GET", "/v1/tasks/task_1"),
    ("POST", "/v1/tasks/task_1/cancel"),
    ("GET", "/v1/tasks/task_1/events"),
]
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer hr_short", "Basic abc", "Bearer hr_" + "a" * 44, "Bearer hr_\u00e9"]
)
async def test_no_route_opens_without_a_key_in_force(
    stack: Stack, method: str, path: str, header: str | None
) -> None:
    headers = {"Authorization": header.encode()} if header else {}
    async with httpx.AsyncClient(base_url=stack.api_url) as http:
        answer = await http.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"", JSON, 400, "invalid_json"),
        (b"{", JSON, 400, "invalid_json"),
        (b"[1]", JSON, 400, "invalid_json"),
        (b'{"temperature": NaN}', JSON, 400, "invalid_json"),
        (b'{"model": "\\ud800"}', JSON, 400, "invalid_json"),
        (b"\xff\xfe", JSON, 400, "invalid_json"),
        (b"[" * 200_000, JSON, 400, "invalid_json"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        (b"{}", {}, 415, "unsupported_media_type"),
        (b" " * (5 << 20), JSON, 413, "request_too_large"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/tasks"])
async def test_a_body_that_is_no_good_gets_a_clear_refusal(
    http: httpx.AsyncClient,
    accepted: Counter,
    path: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    before = accepted()
    answer = await http.post(path, content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert accepted() == before


async def test_a_minimum_of_output_that_does_not_fit_is_refused_before_it_is_queued(
    http: httpx.AsyncClient, stack: Stack, accepted: Counter
) -> None:
    before = accepted()
    message = {"role": "user", "content": "x"}
    answer = await http.post(
        CHAT, json={"model": stack.model, "messages": [message], "min_tokens": 10_000_000}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "min_tokens")
    assert accepted() == before


@pytest.mark.parametrize("path", [CHAT, "/v1/tasks"])
async def test_a_body_nested_deeper_than_can_be_stored_is_refused(
    http: httpx.AsyncClient, stack: Stack, accepted: Counter, path: str
) -> None:
    before = accepted()
    nested = "[" * 300 + "]" * 300
    chat = (
        f'{{"model":"{stack.model}","messages":[{{"role":"user","content":"x"}}],'
        f'"chat_template_kwargs":{{"a":{nested}}}}}'
    )
    body = chat if path == CHAT else f'{{"url":"{CHAT}","body":{chat}}}'
    answer = await http.post(path, content=body, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert accepted() == before


async def test_a_chunked_body_is_bounded_too(http: httpx.AsyncClient) -> None:
    async def endless() -> object:
        for _ in range(100):
            yield b" " * (1 << 20)

    answer = await http.post(CHAT, content=endless(), headers=JSON)  # type: ignore[arg-type]
    assert answer.status_code == 413


async def test_a_ten_megabyte_prompt_within_the_limit_would_still_be_counted_before_it_is_queued(
    http: httpx.AsyncClient, stack: Stack, accepted: Counter
) -> None:
    before = accepted()
    message = {"role": "user", "content": "word " * 700_000}
    answer = await http.post(CHAT, json={"model": stack.model, "messages": [message]})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert accepted() == before


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("DELETE", "/v1/tasks", 405),
        ("GET", "/v1/tasks/", 404),
    ],
)
async def test_an_unknown_route_answers_in_the_same_form(
    http: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_sane_request_id_is_kept_and_another_replaced(http: httpx.AsyncClient) -> None:
    kept = await http.get("/healthz", headers={"X-Request-Id": "mine-1"})
    assert kept.headers["x-request-id"] == "mine-1"
    replaced = await http.get("/healthz", headers={"X-Request-Id": "x" * 200})
    assert replaced.headers["x-request-id"].startswith("req_")


async def test_health_says_what_is_there(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["stores"]) == (200, {"postgres": "ok", "redis": "ok"})
