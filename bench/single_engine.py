"""An arm of `bench single`: the worker's own vLLM engine, set up as the arm says, in a process with nothing around it.

`python -m bench.single_engine ARGUMENTS`, a JSON object of further AsyncEngineArgs; what vLLM reads from the
environment is set by who starts it. It takes `path` and `model` from the environment of `bench single`.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from typing import Any

from bench.peer import claim_output, serve
from workers.vllm_engine import VLLMEngine

PATH, KV_CACHE_BYTES = "HEADRACE_BENCH_MODEL_PATH", 1 << 30
_READ_BYTES, _READS = 1 << 30, 5
_numbers = itertools.count()


async def generate(engine: Any, prompt: list[int], tokens: int, *, detokenize: bool = True) -> list[int]:
    """Generate greedily and return the ids."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(
        max_tokens=tokens,
        temperature=0.0,
        ignore_eos=True,
        detokenize=detokenize,
        output_kind=RequestOutputKind.DELTA,
    )
    ids = list[int]()
    async for step in engine.generate({"prompt_token_ids": prompt}, params, f"single-{next(_numbers)}"):
        for part in step.outputs:
            ids += part.token_ids
    return ids


async def run(engine: Any, command: dict[str, Any]) -> dict[str, Any]:
    """Generate all prompts, `in_flight` at a time; moments are those of the machine's monotonic clock."""
    waiting, tokens, made = list(command["prompts"]), int(command["tokens"]), 0

    async def place() -> None:
        nonlocal made
        while waiting:
            ids = await generate(engine, waiting.pop(), tokens, detokenize=command.get("detokenize", True))
            made += len(ids)

    began = time.monotonic_ns()
    async with asyncio.TaskGroup() as group:
        for _ in range(command["in_flight"]):
            group.create_task(place())
    ended = time.monotonic_ns()
    return {"began_ns": began, "ended_ns": ended, "tokens": made, "wall_s": (ended - began) / 1e9}


def read_bandwidth() -> float:
    """Return the bytes a second that all cores together read of memory: the best of a few sums over 1 GiB."""
    import torch

    source, best = torch.ones(_READ_BYTES // 8, dtype=torch.int64), 0.0
    for _ in range(_READS):
        began = time.perf_counter()
        source.sum()
        best = max(best, _READ_BYTES / (time.perf_counter() - began))
    return best


async def main() -> None:
    """Start, answer commands, stop."""
    answers = claim_output()
    began = time.monotonic()
    engine = VLLMEngine(
        "single", os.environ[PATH], kv_cache_bytes=KV_CACHE_BYTES, engine_args=json.loads(sys.argv[1])
    )
    await engine.start()
    started_s = time.monotonic() - began

    async def handle(command: dict[str, Any]) -> Any:
        raw = engine._running()  # the AsyncLLM inside
        if command["do"] == "hello":
            return {
                "start_s": round(started_s, 1),
                "version": engine.info.version,
                "processes": len(engine.pids()),
                "weight_bytes": engine.info.weight_bytes,
                "async_scheduling": raw.vllm_config.scheduler_config.async_scheduling,
            }
        if command["do"] == "bandwidth":
            return await asyncio.to_thread(read_bandwidth)
        if command["do"] == "answer":
            return await generate(raw, command["prompt"], command["tokens"])
        return await run(raw, command)

    try:
        await serve(answers, handle)
    finally:
        await engine.stop()


if __name__ == "__main__":  # vLLM's processes import this module again
    import uvloop

    uvloop.run(main())
