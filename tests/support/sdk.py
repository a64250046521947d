"""The official OpenAI client in either form behind one way to call it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, Literal

from openai import AsyncOpenAI, OpenAI

from tests.support.stacks import SharedStack


class Sdk:
    """`await sdk.do("chat.completions.create", model=…)` on `OpenAI` (in a thread) or `AsyncOpenAI`."""

    def __init__(self, client: Any, model: str, stack: SharedStack) -> None:
        self.client, self.model, self.stack = client, model, stack

    @classmethod
    @asynccontextmanager
    async def of(
        cls, stack: SharedStack, kind: Literal["sync", "async"], **options: Any
    ) -> AsyncIterator["Sdk"]:
        """A client on a stack, with its key, that does not try again by itself unless told to."""
        options = {
            "base_url": f"{stack.api_url}/v1",
            "api_key": stack.api_key,
            "max_retries": 0,
            "timeout": 120,
        } | options
        if kind == "async":
            async with AsyncOpenAI(**options) as client:
                yield cls(client, stack.model, stack)
        else:
            with OpenAI(**options) as client:
                yield cls(client, stack.model, stack)

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
