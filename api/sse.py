"""Server-sent events, and noticing at once that a client left."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """Await `work`; cancel it when the client leaves. Raises: ClientGoneError. The body must be read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_until_gone(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class EventStream(Response):
    """A stream of frames. `finish(left_early)` runs at its end, whichever way it ends."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        *,
        finish: Callable[[bool], Awaitable[None]],
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.frames = frames
        self.finish = finish
        # proxies that buffer would hold back the first chunk
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"} | (headers or {}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the frames end or the client leaves."""

        async def deliver() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(self.frames) as frames:  # type: ignore[type-var]
                async for frame in frames:
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        delivering = asyncio.ensure_future(deliver())
        leaving = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({delivering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            left_early = not delivering.done()
            if not left_early:
                delivering.result()
        except OSError:
            left_early = True
        finally:
            for task in (delivering, leaving):
                task.cancel()
            await asyncio.gather(delivering, leaving, return_exceptions=True)
            await self.finish(left_early)
