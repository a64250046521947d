"""The offline arm: vLLM's own `LLM.generate` on all prompts at once, with the arguments of a worker's engine.

`python -m bench.offline_engine`, in the environment of the stack's children.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peer import claim_output, serve
from bench.raw_engine import RawDeterministic, run
from runtime.chat_template import ModelTokenizer
from runtime.resources import open_database
from runtime.settings import Settings, settings
from services.workers import find_model
from storage.records import Model
from workers.app import build_engine, read_engine_args


class Offline:
    """`vllm.LLM`."""

    def __init__(self, given: Settings, model: Model) -> None:
        from workers.vllm_dtype import cpu_dtype
        from workers.vllm_process import prepare_environment

        prepare_environment(True)
        import vllm
        from vllm.platforms import current_platform

        arguments: dict[str, Any] = {
            "model": model.path,
            "max_num_seqs": given.max_num_seqs,
            "max_model_len": model.max_model_len,
            "max_num_batched_tokens": given.max_batched_tokens,
        }
        if current_platform.is_cpu():
            arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": given.kv_cache_bytes}
            arguments["dtype"] = cpu_dtype(Path(model.path))
        else:
            arguments["gpu_memory_utilization"] = given.gpu_memory_share
        self.version = vllm.__version__
        self._engine = vllm.LLM(**{**arguments, **read_engine_args(given.engine_args_file)})
        self._tokenizer = ModelTokenizer(model.path)

    def generate(self, bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Generate all; what a caller of `LLM.chat` would wait for, rendering included."""
        from vllm.sampling_params import SamplingParams

        began = time.perf_counter()
        prompts = [{"prompt_token_ids": self._tokenizer.encode_chat(body)} for body in bodies]
        params = [
            SamplingParams(
                max_tokens=body["max_tokens"], temperature=body["temperature"], ignore_eos=body["ignore_eos"]
            )
            for body in bodies
        ]
        outputs = self._engine.generate(prompts, params, use_tqdm=False)
        wall_s = time.perf_counter() - began
        return {"wall_s": wall_s, "tokens": sum(len(output.outputs[0].token_ids) for output in outputs)}


async def main() -> None:
    """Start, answer commands."""
    answers = claim_output()
    database = open_database(settings(), name="bench")
    model = await find_model(database, settings().model)
    await database.dispose()
    if settings().engine == "deterministic":  # to try the benchmark out
        engine = build_engine(settings(), model)
        await engine.start()

        async def made_up(command: dict[str, Any]) -> Any:
            if command["do"] == "hello":
                return {"engine": engine.info.kind, "version": engine.info.version, "pid": os.getpid()}
            return await run(RawDeterministic(engine), command["bodies"], settings().max_num_seqs)

        await serve(answers, made_up)
        return
    offline = await asyncio.to_thread(Offline, settings(), model)

    async def handle(command: dict[str, Any]) -> Any:
        if command["do"] == "hello":
            return {"engine": "vllm", "version": offline.version, "pid": os.getpid()}
        return await asyncio.to_thread(offline.generate, command["bodies"])

    await serve(answers, handle)


if __name__ == "__main__":  # vLLM's processes import this module again
    asyncio.run(main())
