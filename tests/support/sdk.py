"""The official OpenAI client in either form behind one way to call it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, Literal, Protocol

from openai import AsyncOpenAI, OpenAI


class Served(Protocol):
    """What a client must know: a stack, or a lab."""

    @property
    def api_url(self) -> str:
        """Without a slash at its end."""
        ...

    @property
    def api_key(self) -> str:
        """A key in force."""
        ...

    @property
    def model(self) -> str:
        """The name of a model it serves."""
        ...


class Sdk:
    """`await sdk.do("chat.completions.create", model=…)` on `OpenAI` (in a thread) or `AsyncOpenAI`."""

    def __init__(self, client: Any, model: str) -> None:
        self.client, self.model = client, model

    @classmethod
    @asynccontextmanager
    async def of(cls, stack: Served, kind: Literal["sync", "async"], **options: Any) -> AsyncIterator["Sdk"]:
        """A client on a stack, with its key, that does not try again by itself unless told to."""
        options = {
            "base_url": f"{stack.api_url}/v1",
            "api_key": stack.api_key,
            "max_retries": 0,
            "timeout": 120,
        } | options
        if kind == "async":
            async with AsyncOpenAI(**options) as client:
                yield cls(client, stack.model)
        else:
            with OpenAI(**options) as client:
                yield cls(client, stack.model)

    async def do(self, method: str, *args: Any, **fields: Any) -> Any:
        """Call a method by its dotted name."""
        call = attrgetter(method)(self.client)
        if isinstance(self.client, AsyncOpenAI):
            return await call(*args, **fields)
        return await asyncio.to_thread(call, *args, **fields)

    async def all(self, method: str, *args: Any, **fields: Any) -> list[Any]:
        """Call a method that streams or pages, and take everything."""
        call = attrgetter(method)(self.client)
        if isinstance(self.client, AsyncOpenAI):
            made = call(*args, **fields)
            # a page request is iterable as it is; a stream has to be awaited first
            source = made if hasattr(made, "__aiter__") else await made
            return [item async for item in source]
        return await asyncio.to_thread(lambda: list(call(*args, **fields)))

    async def run_stream(self, method: str, **fields: Any) -> Any:
        """Run a stream helper (`chat.completions.stream`) to its end; return what it folded."""
        manager = attrgetter(method)(self.client)(**fields)
        if isinstance(self.client, AsyncOpenAI):
            async with manager as stream:
                return await stream.get_final_completion()

        def run() -> Any:
            with manager as stream:
                return stream.get_final_completion()

        return await asyncio.to_thread(run)
