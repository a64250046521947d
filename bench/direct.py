"""The direct arm: the engine in the process that serves HTTP, its chunks sent as they come, nothing between.

`python -m bench.direct PORT`, in the environment of the stack's children.
"""

import itertools
import sys
from collections.abc import AsyncIterator

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from bench.raw_engine import URL, start
from workers.engine import Engine, GenerateRequest

_numbers = itertools.count()


def application(engine: Engine) -> Starlette:
    """Build the ASGI application."""

    async def create(request: Request) -> StreamingResponse:
        body = orjson.loads(await request.body())
        return StreamingResponse(_frames(engine, body), media_type="text/event-stream")

    return Starlette(routes=[Route(URL, create, methods=["POST"])])


async def _frames(engine: Engine, body: dict[str, object]) -> AsyncIterator[bytes]:
    name = f"direct-{next(_numbers)}"
    about = {"id": name, "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    async for output in engine.generate(GenerateRequest(name, URL, body, int(str(body["max_tokens"])))):
        choices = [
            {"index": delta.index, "delta": {"content": delta.text}, "finish_reason": delta.finish_reason}
            for delta in output.deltas
        ]
        yield b"data: " + orjson.dumps({**about, "choices": choices}) + b"\n\n"
    yield b"data: [DONE]\n\n"


async def serve(port: int) -> None:
    """Serve until told to stop."""
    engine, _ = await start()
    config = uvicorn.Config(
        application(engine), port=port, log_level="warning", http="httptools", ws="none", backlog=4096
    )
    try:
        await uvicorn.Server(config).serve()
    finally:
        await engine.stop()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1])))
