"""A process with a vLLM engine inside, to be killed: python -m tests.support.engine_process MODEL.

Prints one JSON line with the engine's process ids once it has answered, and then keeps a request running. Its
event loop runs beside the main thread, as the Celery pool's does.
"""

import asyncio
import json
import sys
import threading
from pathlib import Path

from tests.support.engines import chat, request, run


async def serve(model: Path) -> None:
    """Start, answer, say so, keep busy."""
    from workers.vllm_engine import VLLMEngine

    engine = VLLMEngine("demo", model, max_num_seqs=4, max_model_len=1024, kv_cache_bytes=1 << 27)
    await engine.start()
    answer = await run(engine, request(chat()))
    print(json.dumps({"pids": engine.pids(), "answer": answer.only.text}), flush=True)
    while True:
        await run(engine, request(chat(ignore_eos=True), max_tokens=900))


if __name__ == "__main__":
    thread = threading.Thread(target=lambda: asyncio.run(serve(Path(sys.argv[1]))), daemon=True)
    thread.start()
    thread.join()
