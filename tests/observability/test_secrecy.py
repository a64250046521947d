"""No text of a prompt or an answer, and no secret, is anywhere but where it belongs."""

import io
import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import structlog

from runtime.logs import configure_logs
from runtime.settings import Settings
from tests.observability.scrapes import scrape
from tests.support.otlp import Otlp
from tests.support.stacks import SharedStack
from tests.support.waiting import eventually_async

# Where bodies are kept until their retention ends; nowhere else.
PAYLOADS = {("task_payloads", "request"), ("task_payloads", "response"), ("responses", "input")}


def paths(model: str, marker: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests that take every way through the platform, each with the marker as its text."""
    text = f"Do not show {marker} to anybody."
    messages = [{"role": "user", "content": text}]
    chat = {"model": model, "messages": messages, "max_tokens": 24}
    yield "/v1/chat/completions", chat
    yield "/v1/chat/completions", chat | {"stream": True}
    yield "/v1/completions", {"model": model, "prompt": text, "max_tokens": 8}
    yield "/v1/responses", {"model": model, "input": text, "max_output_tokens": 8}
    task = {"url": "/v1/chat/completions"}
    yield "/v1/tasks", task | {"body": chat}
    yield "/v1/tasks", task | {"body": chat, "priority": "batch"}
    for fault in ("<<fault:refuse>>", "<<fault:die>>"):
        shown = [{"role": "user", "content": f"{text} {fault}"}]
        yield "/v1/tasks", task | {"body": chat | {"messages": shown}}
    # refused: for a field, a type, a length, a template, JSON that is none
    yield "/v1/chat/completions", chat | {marker: 1}
    yield "/v1/chat/completions", chat | {"temperature": text}
    yield "/v1/chat/completions", chat | {"messages": [{"role": text, "content": text}]}
    yield "/v1/chat/completions", chat | {"messages": [{"role": "user", "content": text * 3000}]}
    yield "/v1/chat/completions", chat | {"model": marker}
    yield "/v1/tasks", task | {"body": chat, "deadline_s": text}
    yield "/v1/completions", {"model": model, "prompt": {"text": text}}


def found_in_rows(database_url: str, *needles: str) -> list[tuple[str, str, str]]:
    """Table, column and needle of every column that holds one and is no payload."""
    engine = sa.create_engine(sa.make_url(database_url).set(drivername="postgresql+psycopg"))
    columns = sa.text(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    )
    hits = []
    with engine.connect() as connection:
        for table, column in connection.execute(columns).all():
            if (table, column) in PAYLOADS:
                continue
            for needle in needles:
                asked = sa.text(
                    f'SELECT count(*) FROM "{table}" WHERE strpos(CAST("{column}" AS text), :needle) > 0'
                )
                if connection.execute(asked, {"needle": needle}).scalar_one():
                    hits.append((table, column, needle))
    engine.dispose()
    return hits


async def test_a_marker_in_prompts_is_in_no_log_span_metric_event_or_row(
    deterministic_stack: SharedStack, otlp: Otlp
) -> None:
    stack = deterministic_stack
    marker = f"marker{secrets.token_hex(8)}"
    answers: list[str] = []
    async with httpx.AsyncClient(base_url=stack.api_url, headers=stack.headers, timeout=60) as client:
        for path, body in paths(stack.model, marker):
            answer = await client.post(path, json=body, headers={"Prefer": "wait=30"})
            assert answer.status_code < 500 or answer.status_code == 503, answer.text
            if path == "/v1/chat/completions" and answer.status_code == 200 and not body.get("stream"):
                answers.append(answer.json()["choices"][0]["message"]["content"].strip())
        await client.post("/v1/chat/completions", content=f'{{"{marker}": '.encode())
        await batch(client, stack.model, marker)
    assert answers and all(len(answer) > 20 for answer in answers)
    needles = (marker, *(answer[:24] for answer in answers))

    async with httpx.AsyncClient(auth=stack.flower_auth, timeout=30) as flower:
        events = (await flower.get(f"{stack.flower_url}/api/tasks", params={"limit": "1000"})).text
    told = {file.name: file.read_text(errors="replace") for file in stack.folder.logs.iterdir()}
    told["metrics"] = str((await scrape(stack)).samples)
    told["spans"] = "".join(span.raw for span in otlp.spans)
    told["flower"] = events
    assert "task_ended" in told["worker.log"]
    assert stack.model in told["spans"] and stack.model in told["metrics"]
    assert [(where, needle) for where, text in told.items() for needle in needles if needle in text] == []
    assert found_in_rows(stack.database_url, *needles) == []


async def batch(client: httpx.AsyncClient, model: str, marker: str) -> None:
    """A batch of one good and one bad line, to its end."""
    line = {
        "custom_id": "one",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": [{"role": "user", "content": marker}], "max_tokens": 4},
    }
    bad = line | {"custom_id": "two", "body": {"model": model, "messages": marker}}
    content = "\n".join(json.dumps(one) for one in (line, bad)).encode()
    files = {"file": ("input.jsonl", content)}
    stored = await client.post("/v1/files", data={"purpose": "batch"}, files=files)
    assert stored.status_code == 200, stored.text
    asked = {
        "input_file_id": stored.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    made = await client.post("/v1/batches", json=asked)
    assert made.status_code == 200, made.text

    async def ended() -> bool:
        seen = (await client.get(f"/v1/batches/{made.json()['id']}")).json()
        return seen["status"] in ("completed", "failed", "expired", "cancelled")

    await eventually_async(ended, 40, "the batch ends")


SECRETS = {
    "database_url": "postgresql://user:swordfish99@db/name",
    "broker_url": "redis://:swordfish88@valkey/0",
    "streams_url": "redis://:swordfish77@valkey/1",
    "key_pepper": "peppercorn-and-more",
}


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What would go to stdout; logging is put back afterwards."""
    root, kept = logging.getLogger(), logging.getLogger().handlers[:]
    level, configuration = root.level, structlog.get_config()
    configure_logs(Settings.model_validate(SECRETS), process="test")
    written = io.StringIO()
    assert isinstance(root.handlers[0], logging.StreamHandler)
    root.handlers[0].setStream(written)
    yield written
    root.handlers[:] = kept
    root.setLevel(level)
    structlog.configure(**configuration)


def test_secrets_are_scrubbed_from_every_line_whoever_writes_it(lines: io.StringIO) -> None:
    key = "hr_" + "a2b3c4d5e6f7" + "z" * 32
    structlog.get_logger().info(
        "own", url=SECRETS["database_url"], nested={"key": [key]}, pepper="peppercorn-and-more"
    )
    logging.getLogger("someone.else").warning(
        "can't reach %s as %s", "amqp://me:hushhush@host/", f"Bearer {key}"
    )
    try:
        raise ConnectionError(f"no answer from {SECRETS['streams_url']}")
    except ConnectionError:
        structlog.get_logger().exception("broken")
    text = lines.getvalue()
    assert len([json.loads(line) for line in text.splitlines()]) == 3
    for secret in (key, "swordfish", "peppercorn", "hushhush"):
        assert secret not in text
    assert text.count("[secret]") >= 5


def test_what_is_no_secret_stays(lines: io.StringIO) -> None:
    task_id = "task_01m8pasx4hztj9nmhjepwyxy77"
    structlog.get_logger().info("kept", task_id=task_id, key="hr_a2b3c4d5e6f7", path="/v1/x:y@z")
    line = json.loads(lines.getvalue())
    assert (line["task_id"], line["key"], line["path"]) == (task_id, "hr_a2b3c4d5e6f7", "/v1/x:y@z")


def test_log_files_of_a_stack_hold_one_json_object_a_line(deterministic_stack: SharedStack) -> None:
    folder: Path = deterministic_stack.folder.logs
    for name in ("api", "worker", "control"):
        for line in (folder / f"{name}.log").read_text().splitlines():
            assert isinstance(json.loads(line), dict), f"{name}: {line[:200]}"
