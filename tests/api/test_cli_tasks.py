"""`headrace submit`, `tail`, `result` and `cancel`, run as a user runs them."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.stacks import ROOT
from tests.support.stacks import SharedStack as Stack


@dataclass
class Ran:
    """A command that ended."""

    code: int
    out: str
    err: str


async def headrace(stack: Stack | None, *arguments: str, stdin: str = "", **environment: str) -> Ran:
    """Run the command; with a stack, its address and key stand in the environment."""
    known = {"HEADRACE_API_URL": stack.api_url, "HEADRACE_API_KEY": stack.api_key} if stack else {}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", *arguments),
        cwd=ROOT,
        env={**os.environ, **known, **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


async def answer_of(http: httpx.AsyncClient, task_id: str) -> str:
    text: str = (await http.get(f"/v1/tasks/{task_id}")).json()["response"]["choices"][0]["message"][
        "content"
    ]
    return text


async def test_a_prompt_is_submitted_and_its_answer_printed(http: httpx.AsyncClient, stack: Stack) -> None:
    submitted = await headrace(
        stack, "submit", "Tell me about weirs.", "--max-tokens", "8", "--metadata", "a=b"
    )
    assert (submitted.code, submitted.err) == (0, "")
    task_id = submitted.out.strip()
    waited = await headrace(stack, "result", task_id, "--wait")
    assert (waited.code, waited.out) == (0, await answer_of(http, task_id) + "\n")
    tailed = await headrace(stack, "tail", task_id)
    assert (tailed.code, tailed.out) == (0, waited.out)
    whole = await headrace(stack, "result", task_id, "--json")
    assert json.loads(whole.out) == (await http.get(f"/v1/tasks/{task_id}")).json()
    assert json.loads(whole.out)["metadata"] == {"a": "b"}
    events = [
        json.loads(line) for line in (await headrace(stack, "tail", task_id, "--json")).out.splitlines()
    ]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    rest = await headrace(stack, "tail", task_id, "--json", "--after", "2")
    assert [json.loads(line) for line in rest.out.splitlines()] == events[2:]


async def test_a_body_from_stdin_is_submitted_and_tailed_in_one_go(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    body = {"messages": [{"role": "user", "content": "Weirs?"}], "max_tokens": 8}
    ran = await headrace(stack, "submit", "--body", "-", "--tail", stdin=json.dumps(body))
    assert ran.code == 0, ran.err
    assert ran.out == await answer_of(http, ran.err.strip()) + "\n"


async def test_exit_codes_say_how_a_task_ended(stack: Stack) -> None:
    long = await headrace(stack, "submit", "x", "--body", "-", stdin="{}")
    assert long.code == 2  # both a prompt and a body
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3000, "ignore_eos": True}
    task_id = (await headrace(stack, "submit", "--body", "-", stdin=json.dumps(body))).out.strip()
    open_ = await headrace(stack, "result", task_id)
    assert (open_.code, open_.out) == (7, "")
    assert (await headrace(stack, "cancel", task_id)).code == 0
    assert (await headrace(stack, "result", task_id, "--wait")).code == 5
    late = await headrace(stack, "submit", "--body", "-", "--deadline", "1", "--wait", stdin=json.dumps(body))
    assert late.code in (4, 6)
    assert "deadline" in late.err.lower()
    done = await headrace(stack, "submit", "x", "--max-tokens", "4", "--wait")
    assert done.code == 0
    again = await headrace(stack, "cancel", done.err.strip())
    assert (again.code, "completed before" in again.err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tail", "task_" + "0" * 26), "No task"),
        (("submit", "x", "--model", "nobody's"), "does not exist"),
        (("submit", "x", "--key", "hr_wrong"), "not valid"),
    ],
)
async def test_what_the_api_refuses_is_said_in_a_line(
    stack: Stack, arguments: tuple[str, ...], says: str
) -> None:
    ran = await headrace(stack, *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("headrace: ")
    assert says in ran.err
    assert ran.err.count("\n") == 1


async def test_the_local_stack_is_found_by_its_folder(stack: Stack, tmp_path: os.PathLike[str]) -> None:
    ran = await headrace(None, "submit", "x", "--max-tokens", "4", "--wait", "--data", str(stack.data))
    assert ran.code == 0, ran.err
    nothing = await headrace(None, "submit", "x", "--data", str(tmp_path))
    assert (nothing.code, "no stack runs" in nothing.err) == (1, True)
    keyless = await headrace(None, "submit", "x", "--api", "http://127.0.0.1:1", "--data", str(stack.data))
    assert (keyless.code, "needs a key" in keyless.err) == (1, True)


@asynccontextmanager
async def cutting(url: str, *limits: int) -> AsyncIterator[tuple[str, list[int]]]:
    """A relay to the API that breaks its first answers off after so many bytes; also how many it carried."""
    target, carried = urlsplit(url), list[int]()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = limits[len(carried)] if len(carried) < len(limits) else 1 << 30
        carried.append(0)
        place = len(carried) - 1
        up_reader, up_writer = await asyncio.open_connection(target.hostname, target.port)

        async def forward() -> None:
            while piece := await reader.read(65536):
                up_writer.write(piece)

        forwarding = asyncio.create_task(forward())
        with suppress(OSError):
            while carried[place] < limit and (
                piece := await up_reader.read(min(200, limit - carried[place]))
            ):
                carried[place] += len(piece)
                writer.write(piece)
                await writer.drain()
        forwarding.cancel()
        writer.transport.abort()
        up_writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", carried
    finally:
        server.close()


async def test_tail_goes_on_where_a_broken_connection_left_it(http: httpx.AsyncClient, stack: Stack) -> None:
    task_id = (await headrace(stack, "submit", "Weirs?", "--max-tokens", "60")).out.strip()
    async with cutting(stack.api_url, 900, 1500, 2000) as (url, carried):
        ran = await headrace(stack, "tail", task_id, "--api", url)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == await answer_of(http, task_id) + "\n"
    assert len(carried) > 3
