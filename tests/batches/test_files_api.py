"""/v1/files as the official client and a plain one see it."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest
from openai import AsyncOpenAI, NotFoundError

from tests.support.stacks import SharedStack as Stack
from tests.support.tenants import other_tenant
from tests.support.waiting import eventually


def form(content: bytes, name: str = "a.jsonl", purpose: str = "batch") -> dict[str, object]:
    return {"files": {"file": (name, content)}, "data": {"purpose": purpose}}


async def test_a_file_comes_back_byte_for_byte(openai: AsyncOpenAI) -> None:
    content = os.urandom(3_000_001) + b"\r\n--boundary\r\n\x00"
    made = await openai.files.create(file=("odd näme.bin", content), purpose="user_data")
    assert made.id.startswith("file-")
    assert (made.object, made.bytes, made.purpose, made.status) == (
        "file",
        len(content),
        "user_data",
        "processed",
    )
    assert made.filename == "odd näme.bin"
    assert made.expires_at is None
    assert await openai.files.retrieve(made.id) == made
    assert (await openai.files.content(made.id)).content == content
    assert (await openai.files.delete(made.id)).deleted
    with pytest.raises(NotFoundError):
        await openai.files.content(made.id)


async def test_an_expiry_counts_from_creation_and_batch_inputs_have_one(openai: AsyncOpenAI) -> None:
    soon = await openai.files.create(
        file=("a.txt", b"x"),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert soon.expires_at == soon.created_at + 3600
    batch = await openai.files.create(file=("a.jsonl", b"x"), purpose="batch")
    assert batch.expires_at == batch.created_at + 30 * 24 * 3600


async def test_pages_follow_one_another_to_the_end(openai: AsyncOpenAI) -> None:
    made = [(await openai.files.create(file=(f"{i}.txt", b"x"), purpose="evals")).id for i in range(25)]
    seen = [file.id async for file in openai.files.list(limit=10, purpose="evals")]
    assert seen == made[::-1]
    first = await openai.files.list(limit=25, purpose="evals", order="asc")
    assert ([file.id for file in first.data], first.has_more) == (made, False)
    for file_id in made:
        await openai.files.delete(file_id)
    assert (await openai.files.list(purpose="evals")).data == []


async def test_the_purpose_may_stand_behind_the_file(http: httpx.AsyncClient) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nabc\r\n'
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    )
    answer = await http.post(
        "/v1/files", content=body, headers={"Content-Type": "multipart/form-data; boundary=x"}
    )
    assert (answer.status_code, answer.json()["purpose"], answer.json()["bytes"]) == (200, "batch", 3)


@pytest.mark.parametrize(
    ("options", "status", "param"),
    [
        (form(b"x", purpose="nonsense"), 400, "purpose"),
        (form(b"x", purpose="batch_output"), 400, "purpose"),
        (form(b"x", name="a.txt"), 400, "file"),
        ({"files": {"file": ("a.jsonl", b"x")}}, 400, "purpose"),
        ({"files": {"other": ("a.jsonl", b"x")}, "data": {"purpose": "batch"}}, 400, "file"),
        ({"files": {"file": ("a.jsonl", b"x")}, "data": {"purpose": "batch", "color": "red"}}, 400, "color"),
        (
            {
                "files": {"file": ("a.jsonl", b"x")},
                "data": {"purpose": "batch", "expires_after[anchor]": "created_at"},
            },
            400,
            "expires_after.seconds",
        ),
        ({"json": {"purpose": "batch"}}, 415, None),
        (
            {"content": b"--x\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
            400,
            None,
        ),
        ({"content": b"", "headers": {"Content-Type": "multipart/form-data"}}, 400, None),
    ],
)
async def test_a_bad_form_is_refused_by_name_and_leaves_nothing(
    http: httpx.AsyncClient, stack: Stack, options: dict[str, object], status: int, param: str | None
) -> None:
    before = (await http.get("/v1/files?limit=1")).json()["first_id"]
    answer = await http.post("/v1/files", **options)  # type: ignore[arg-type]
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["param"] == param
    assert (await http.get("/v1/files?limit=1")).json()["first_id"] == before


@pytest.mark.parametrize("limit", ["0", "-1", "101", "x"])
async def test_a_bad_limit_is_refused(http: httpx.AsyncClient, limit: str) -> None:
    answer = await http.get(f"/v1/files?limit={limit}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


async def test_a_stranger_s_file_is_as_unknown_as_a_made_up_one(openai: AsyncOpenAI, stack: Stack) -> None:
    mine = await openai.files.create(file=("a.txt", b"secret"), purpose="user_data")
    async with other_tenant(stack) as stranger:
        for path in (f"/v1/files/{mine.id}", f"/v1/files/{mine.id}/content", f"/v1/files?after={mine.id}"):
            answer = await stranger.get(path)
            made_up = await stranger.get(path.replace(mine.id, "file-" + "0" * 26))
            assert answer.status_code == made_up.status_code == 404
            assert answer.text == made_up.text.replace("file-" + "0" * 26, mine.id)
        assert (await stranger.delete(f"/v1/files/{mine.id}")).status_code == 404
        assert (await stranger.get("/v1/files")).json()["data"] == []
    assert (await openai.files.content(mine.id)).content == b"secret"


async def pieces(total_bytes: int, piece: bytes) -> AsyncIterator[bytes]:
    yield (
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    )
    for _ in range(total_bytes // len(piece)):
        yield piece
    yield b"\r\n--x--\r\n"


MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}


async def test_a_file_above_the_limit_is_refused_though_chunked(http: httpx.AsyncClient) -> None:
    too_much = pieces(201 << 20, b"x" * (1 << 20))
    answer = await http.post("/v1/files", content=too_much, headers=MULTIPART)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")


async def test_a_declared_length_above_the_limit_is_refused_before_any_byte(stack: Stack) -> None:
    host, _, port = stack.api_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = ["POST /v1/files HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {stack.api_key}"]
    head += ["Content-Type: multipart/form-data; boundary=x", f"Content-Length: {600 << 20}", "", ""]
    writer.write("\r\n".join(head).encode())
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()


async def test_a_large_upload_and_its_download_cost_the_api_no_memory(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    api = psutil.Process(stack.pids["api"])

    async def upload(size: int) -> str:
        line = b'{"custom_id": "%d", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n' % size
        answer = await http.post("/v1/files", content=pieces(size, line * 200), headers=MULTIPART)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def download(file_id: str) -> int:
        total = 0
        async with http.stream("GET", f"/v1/files/{file_id}/content") as answer:
            async for block in answer.aiter_bytes():
                total += len(block)
        return total

    await download(await upload(1 << 20))
    before = api.memory_info().rss
    assert await download(await upload(150 << 20)) > 149 << 20
    assert api.memory_info().rss - before < 24 << 20


async def test_deleted_files_bytes_are_removed(openai: AsyncOpenAI, stack: Stack) -> None:
    made = await openai.files.create(file=("a.txt", b"x"), purpose="user_data")
    bytes_of = Path(stack.environment["HEADRACE_FILES_URL"]) / "files" / made.id
    assert bytes_of.read_bytes() == b"x"
    await openai.files.delete(made.id)
    await eventually(lambda: not bytes_of.exists(), 15, "its bytes are gone")


async def test_an_upload_cut_off_leaves_nothing(http: httpx.AsyncClient, stack: Stack) -> None:
    folder = Path(stack.environment["HEADRACE_FILES_URL"]) / "files"
    before = {path.name for path in folder.iterdir()} if folder.exists() else set()

    async def cut() -> AsyncIterator[bytes]:
        async for piece in pieces(3 << 20, b"x" * (1 << 20)):
            yield piece
        raise httpx.WriteError("gone")

    class Halfway(Exception):
        pass

    async def half() -> AsyncIterator[bytes]:
        count = 0
        async for piece in cut():
            yield piece
            count += 1
            if count == 3:
                raise Halfway

    with pytest.raises(Halfway):
        await http.post("/v1/files", content=half(), headers=MULTIPART)
    await eventually(
        lambda: {path.name for path in folder.iterdir()} <= before, 15, "what had arrived is removed"
    )
