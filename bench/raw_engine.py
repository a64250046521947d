"""The raw arm: the worker's own engine in a process with nothing around it, no broker, store or HTTP.

For vLLM that is AsyncLLM.generate on token ids rendered beforehand: what the stack adds by rendering and
checking is charged to the stack. `python -m bench.raw_engine`, in the environment of the stack's children.
"""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from bench.peer import claim_output, serve
from runtime.chat_template import ModelTokenizer
from runtime.resources import open_database
from runtime.settings import settings
from services.workers import find_model
from workers.app import build_engine
from workers.engine import Engine, GenerateRequest

URL = "/v1/chat/completions"
_numbers = itertools.count()


class Source(Protocol):
    """An engine, asked for token counts only."""

    def prepare(self, body: dict[str, Any]) -> Any:
        """Do beforehand what is not to be measured."""
        ...

    def generate(self, prepared: Any) -> AsyncIterator[int]:
        """Yield how many tokens each step made."""
        ...


class RawVLLM:
    """AsyncLLM without our code on its path."""

    def __init__(self, engine: Any, tokenizer: ModelTokenizer) -> None:
        self._engine, self._tokenizer = engine, tokenizer

    def prepare(self, body: dict[str, Any]) -> Any:
        """Render the prompt and build the parameters."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            ignore_eos=body["ignore_eos"],
            output_kind=RequestOutputKind.DELTA,
        )
        return {"prompt_token_ids": self._tokenizer.encode_chat(body)}, params

    async def generate(self, prepared: Any) -> AsyncIterator[int]:
        """Generate."""
        prompt, params = prepared
        async for step in self._engine.generate(prompt, params, f"raw-{next(_numbers)}"):
            yield sum(len(part.token_ids) for part in step.outputs)


class RawDeterministic:
    """The deterministic engine: for trying a benchmark out; no model runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def prepare(self, body: dict[str, Any]) -> Any:
        """Build the request."""
        return GenerateRequest(f"raw-{next(_numbers)}", URL, body, body["max_tokens"])

    async def generate(self, prepared: Any) -> AsyncIterator[int]:
        """Generate."""
        async for output in self._engine.generate(prepared):
            yield sum(len(delta.token_ids) for delta in output.deltas)


async def start() -> tuple[Engine, Source]:
    """Start the engine that a worker in this environment would start, from the same row and settings."""
    database = open_database(settings(), name="bench")
    model = await find_model(database, settings().model)
    await database.dispose()
    engine = build_engine(settings(), model)
    await engine.start()
    if settings().engine == "deterministic":
        return engine, RawDeterministic(engine)
    raw: Any = engine
    return engine, RawVLLM(raw._running(), ModelTokenizer(model.path))  # the AsyncLLM inside


async def run(source: Source, bodies: Sequence[dict[str, Any]], in_flight: int) -> dict[str, Any]:
    """Generate all bodies, `in_flight` at a time."""
    waiting = [source.prepare(body) for body in reversed(bodies)]
    first_s, total_s = list[float](), list[float]()
    tokens = chunks = 0

    async def place() -> None:
        nonlocal tokens, chunks
        while waiting:
            began, first = time.perf_counter(), 0.0
            async for made in source.generate(waiting.pop()):
                first = first or time.perf_counter()
                tokens += made
                chunks += 1
            first_s.append(first - began)
            total_s.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(in_flight, len(bodies))):
            group.create_task(place())
    wall_s = time.perf_counter() - began
    return {"wall_s": wall_s, "tokens": tokens, "chunks": chunks, "first_s": first_s, "total_s": total_s}


async def main() -> None:
    """Start, answer commands, stop."""
    answers = claim_output()
    engine, source = await start()

    async def handle(command: dict[str, Any]) -> Any:
        if command["do"] == "hello":
            return {"engine": engine.info.kind, "version": engine.info.version, "pid": os.getpid()}
        return await run(source, command["bodies"], command["in_flight"])

    try:
        await serve(answers, handle)
    finally:
        await engine.stop()


if __name__ == "__main__":  # vLLM's processes import this module again
    import uvloop

    uvloop.run(main())
