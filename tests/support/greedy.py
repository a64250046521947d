"""Greedy texts of chat prompts straight from the engine: one after another, then all at once.

python -m tests.support.greedy MODEL_FOLDER < prompts.json > texts.json: a process of its own, because an
engine's memory and processes should end with it.
"""

import asyncio
import json
import sys
from pathlib import Path

from runtime.settings import Settings
from workers.engine import GenerateRequest
from workers.vllm_engine import VLLMEngine

TOKENS = 64


async def main(folder: Path, prompts: list[str]) -> dict[str, list[str]]:
    """Texts in the order of the prompts, by how they were asked for."""
    defaults = Settings.model_fields
    engine = VLLMEngine(
        "demo",
        folder,
        max_num_seqs=defaults["max_num_seqs"].default,
        max_model_len=4096,
        kv_cache_bytes=defaults["kv_cache_bytes"].default,
    )
    await engine.start()

    async def text(name: str, prompt: str) -> str:
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0}
        request = GenerateRequest(name, "/v1/chat/completions", body, TOKENS)
        parts = [delta.text async for output in engine.generate(request) for delta in output.deltas]
        return "".join(parts)

    try:
        alone = [await text(f"alone-{i}", prompt) for i, prompt in enumerate(prompts)]
        batched = await asyncio.gather(*(text(f"batched-{i}", prompt) for i, prompt in enumerate(prompts)))
    finally:
        await engine.stop()
    return {"alone": alone, "batched": list(batched)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), json.load(sys.stdin)))))
