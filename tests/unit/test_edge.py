"""The edge where a client or a store goes away in the middle."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import httpx
import orjson
import pytest
from fastapi import FastAPI, Request
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.types import Message

from api import errors
from api.body import read_json
from api.generate import Generating
from api.sse import ClientGoneError
from api.state import ApiState
from schemas.chat import ChatCompletionRequest
from services.authenticate import Access
from storage.records import Caller
from storage.streams import Event


async def test_a_client_that_leaves_while_it_sends_is_gone_and_no_fault_of_ours() -> None:
    async def left() -> Message:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(ClientGoneError):
        await read_json(Request(scope, left), 1024)


async def test_an_internal_error_has_the_envelope_and_the_requests_id() -> None:
    app = FastAPI()
    app.add_middleware(errors.RequestIds)
    errors.install(app)

    @app.get("/fails")
    async def fails() -> None:
        raise ValueError("nobody thought of it")

    @app.get("/wrong")
    async def wrong() -> None:
        raise DBAPIError("", None, Exception("a statement that is wrong"))

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://edge") as http:
        for path in ("/fails", "/wrong"):
            answer = await http.get(path, headers={"X-Request-Id": "mine"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
            assert answer.headers.get_list("x-request-id") == ["mine"]
            assert "nobody" not in answer.text


async def test_a_stream_whose_store_goes_away_ends_with_an_error_frame_not_in_silence() -> None:
    settings = SimpleNamespace(sync_start_s=5.0, sync_stream_s=5.0)
    database = create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/none")
    state = cast(ApiState, SimpleNamespace(settings=settings, database=database))
    body = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    )
    call = Generating(state, Access(Caller("key_1", "tenant_1"), {}), body)

    async def ended() -> AsyncIterator[Event | None]:
        yield Event(9, "task.completed", b"")  # as the sweep says it: how it ended is in the row

    call._events = ended()
    async with asyncio.timeout(10):
        frames = [frame async for frame in call.frames(None)]
    await database.dispose()
    error = orjson.loads(frames[-1].removeprefix(b"data: "))["error"]
    assert (error["code"], set(error)) == ("store_unavailable", {"message", "type", "param", "code"})
