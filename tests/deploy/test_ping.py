"""`headrace ping` says by its exit code whether a process serves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from cli.main import app
from runtime.settings import settings
from services.lead import leave_lead, take_lead
from services.workers import describe_worker
from storage.presence import WorkerRow
from storage.tables import leaders, workers
from tests.support.seeds import opened

SECRET = "not-to-be-printed"
WORKER = WorkerRow(
    name="box-1",
    model="org/model",
    engine="deterministic",
    engine_version="1",
    length_classes="short,medium,long",
    max_num_seqs=8,
    running=0,
    state="ready",
)


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    text: str


Ping = Callable[..., Awaitable[Answer]]


def run_ping(words: tuple[str, ...]) -> Answer:
    result = CliRunner().invoke(app, ["ping", *words])
    return Answer(result.exit_code, result.output)


@pytest.fixture
def ping(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ping]:
    """Runs the command on a thread: it has an event loop of its own."""
    monkeypatch.setenv("HEADRACE_DATABASE_URL", database_url)
    monkeypatch.setenv("HEADRACE_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("HEADRACE_STREAMS_URL", "redis://127.0.0.1:1/1")
    monkeypatch.setenv("HEADRACE_KEY_PEPPER", SECRET)
    settings.cache_clear()

    async def ask(*words: str) -> Answer:
        return await asyncio.to_thread(run_ping, words)

    yield ask
    settings.cache_clear()


@asynccontextmanager
async def answering(status: str) -> AsyncIterator[str]:
    """URL of a server whose answer to everything has this status line; notes nothing else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        assert request.startswith(b"GET /readyz ")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@pytest.mark.parametrize("state", ["ready", "draining"])
async def test_a_worker_that_serves_or_drains_is_healthy(database_url: str, ping: Ping, state: str) -> None:
    async with opened(database_url) as database:
        await describe_worker(database, replace(WORKER, state=state))
    answer = await ping("--worker", "box-1")
    assert answer.code == 0
    assert f"worker box-1 {state}" in answer.text


async def test_a_worker_without_an_engine_is_not_healthy(database_url: str, ping: Ping) -> None:
    async with opened(database_url) as database:
        await describe_worker(database, replace(WORKER, state="engine_down"))
    answer = await ping("--worker", "box-1")
    assert answer.code == 1
    assert "engine_down" in answer.text


async def test_a_worker_that_was_last_seen_too_long_ago_is_not_healthy(database_url: str, ping: Ping) -> None:
    async with opened(database_url) as database:
        await describe_worker(database, WORKER)
        async with database.begin() as connection:
            ago = sa.func.now() - sa.text("interval '30 seconds'")
            await connection.execute(sa.update(workers).values(seen_at=ago))
    assert (await ping("--worker", "box-1")).code == 1
    assert (await ping("--worker", "box-1", "--within", "60")).code == 0


async def test_one_worker_does_not_answer_for_another(database_url: str, ping: Ping) -> None:
    async with opened(database_url) as database:
        await describe_worker(database, WORKER)
    assert (await ping("--worker", "box-2")).code == 1


async def test_control_is_healthy_only_while_somebody_leads(database_url: str, ping: Ping) -> None:
    assert (await ping("--control")).code == 1
    async with opened(database_url) as database:
        assert await take_lead(database, "control", "box-1", 60.0)
        answer = await ping("--control")
        assert (answer.code, answer.text.strip()) == (0, "control: led by box-1")
        async with database.begin() as connection:
            ended = sa.func.now() - sa.text("interval '1 second'")
            await connection.execute(sa.update(leaders).values(expires_at=ended))
        assert (await ping("--control")).code == 1
        await leave_lead(database, "control", "box-1")


async def test_the_lead_of_another_role_does_not_count(database_url: str, ping: Ping) -> None:
    async with opened(database_url) as database:
        await take_lead(database, "other", "box-1", 60.0)
    assert (await ping("--control")).code == 1


async def test_an_api_that_is_ready_is_healthy(ping: Ping) -> None:
    async with answering("200 OK") as url:
        assert (await ping("--api", url)).code == 0


async def test_an_api_that_is_not_ready_or_not_there_is_not_healthy(ping: Ping) -> None:
    async with answering("503 Service Unavailable") as url:
        answer = await ping("--api", url)
        assert answer.code == 1
        assert "503" in answer.text
    assert (await ping("--api", url)).code == 1  # nobody listens there any more


async def test_a_database_that_is_away_is_said_without_its_password(
    ping: Ping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE_URL", f"postgresql://headrace:{SECRET}@127.0.0.1:1/headrace")
    answer = await ping("--control")
    assert answer.code == 1
    assert "database does not answer" in answer.text
    assert SECRET not in answer.text


@pytest.mark.parametrize("words", [(), ("--control", "--worker", "box-1")])
async def test_a_question_to_none_or_to_two_is_refused(ping: Ping, words: tuple[str, ...]) -> None:
    answer = await ping(*words)
    assert answer.code == 2
