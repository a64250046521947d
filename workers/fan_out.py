"""Several prompts in one text completion: an engine runs one prompt a request, so they are run beside each other.

Choices are numbered prompt by prompt; counts are summed. Everything else goes to the engine as it is.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from schemas.text import prompts_of
from workers import body as bodies
from workers.accounts import Account, EngineAccounts
from workers.engine import Engine, EngineHealth, EngineInfo, EngineUsage, GenerateRequest, Output
from workers.meter import StepMeter

_Item = tuple[int, Output] | BaseException


class FanOut:
    """An engine that also takes lists of prompts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._parts: dict[str, list[str]] = {}  # of running requests: the ids of their prompts' requests

    @property
    def accounts(self) -> EngineAccounts:
        """See Engine."""
        return self.engine.accounts

    @property
    def meter(self) -> StepMeter:
        """See Engine."""
        return self.engine.meter

    def pids(self) -> list[int]:
        """See Engine."""
        return self.engine.pids()

    @property
    def info(self) -> EngineInfo:
        """See Engine."""
        return self.engine.info

    async def start(self) -> None:
        """See Engine."""
        await self.engine.start()

    async def check(self, timeout_s: float) -> EngineHealth:
        """See Engine."""
        return await self.engine.check(timeout_s)

    async def stop(self) -> None:
        """See Engine."""
        await self.engine.stop()

    async def abort(self, request_id: str) -> None:
        """Stop a request: all its prompts."""
        for part in self._parts.get(request_id, [request_id]):
            await self.engine.abort(part)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Output, None]:
        """See Engine."""
        prompt = request.body.get("prompt")
        if request.url != bodies.COMPLETIONS or not isinstance(prompt, list) or not prompt:
            return self.engine.generate(request)
        prompts = prompts_of(prompt)
        if len(prompts) == 1:
            return self.engine.generate(replace(request, body={**request.body, "prompt": prompts[0]}))
        return self._generate_all(
            request,
            [
                replace(
                    request,
                    request_id=f"{request.request_id}.{at}",
                    body={**request.body, "prompt": one},
                    account=Account(),
                )
                for at, one in enumerate(prompts)
            ],
        )

    async def _generate_all(
        self, request: GenerateRequest, parts: list[GenerateRequest]
    ) -> AsyncGenerator[Output, None]:
        n = bodies.choices(parts[0].body)
        items: asyncio.Queue[_Item] = asyncio.Queue()
        running = [asyncio.create_task(self._pump(at, part, items)) for at, part in enumerate(parts)]
        self._parts[request.request_id] = [part.request_id for part in parts]
        counts = [EngineUsage(0, 0, 0)] * len(parts)
        unfinished = len(parts)
        try:
            while unfinished:
                item = await items.get()
                if isinstance(item, BaseException):
                    raise item
                at, output = item
                counts[at] = output.usage
                unfinished -= output.finished
                request.account.used_us = sum(part.account.used_us for part in parts)
                deltas = [replace(delta, index=at * n + delta.index) for delta in output.deltas]
                yield Output(deltas, _sum(counts), not unfinished)
        finally:
            del self._parts[request.request_id]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            request.account.used_us = sum(part.account.used_us for part in parts)

    async def _pump(self, at: int, part: GenerateRequest, items: asyncio.Queue[_Item]) -> None:
        try:
            async with aclosing(self.engine.generate(part)) as outputs:
                async for output in outputs:
                    items.put_nowait((at, output))
        except Exception as error:  # noqa: BLE001 - raised again by whoever takes the items
            items.put_nowait(error)


def _sum(counts: list[EngineUsage]) -> EngineUsage:
    """All prompts together; times are those of the slowest."""

    def longest(times: list[float | None]) -> float | None:
        return max((time for time in times if time is not None), default=None)

    return EngineUsage(
        sum(one.prompt_tokens for one in counts),
        sum(one.cached_prompt_tokens for one in counts),
        sum(one.output_tokens for one in counts),
        longest([one.queued_s for one in counts]),
        longest([one.prefill_s for one in counts]),
        longest([one.decode_s for one in counts]),
        sum(one.preemptions for one in counts),
    )
