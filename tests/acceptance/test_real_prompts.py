"""The 80 first turns of MT-bench, submitted at once."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.demo_model import demo_model
from tests.support.greedy import TOKENS
from tests.support.sse import read_events, text_of
from tests.support.stacks import SharedStack

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def first_turns(real_data: Path) -> list[str]:
    lines = (real_data / "mt_bench_questions.jsonl").read_text().splitlines()
    return [json.loads(line)["turns"][0] for line in lines]


@pytest.fixture(scope="module")
async def texts(vllm_stack: SharedStack, first_turns: list[str]) -> list[str]:
    """What the stack answers to all of them at once: streamed, and checked against what polling gives."""
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(
        base_url=vllm_stack.api_url, headers=vllm_stack.headers, timeout=300, limits=limits
    ) as http:

        async def one(prompt: str) -> str:
            message = {"role": "user", "content": prompt}
            body = {"model": vllm_stack.model, "messages": [message], "max_tokens": TOKENS, "temperature": 0}
            task = (await http.post("/v1/tasks", json={"url": "/v1/chat/completions", "body": body})).json()
            events = [event async for event in read_events(http, f"/v1/tasks/{task['id']}/events")]
            polled = (await http.get(f"/v1/tasks/{task['id']}")).json()
            assert polled["status"] == "completed", polled
            assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
            streamed = text_of(events)
            assert streamed == polled["response"]["choices"][0]["message"]["content"]
            return streamed

        return list(await asyncio.gather(*(one(prompt) for prompt in first_turns)))


async def test_all_first_turns_complete_and_stream_what_polling_gives(
    texts: list[str], first_turns: list[str]
) -> None:
    assert len(texts) == len(first_turns) == 80
    assert all(texts)


@pytest.mark.full
async def test_queues_cost_no_fidelity_beyond_what_batching_costs(
    texts: list[str], first_turns: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounding differs with the batch, in vLLM alone as here: our share of texts that equal the engine's own
    at concurrency 1 is held against the engine's own share when it gets all prompts at once.
    """
    environment = os.environ | {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    }
    answered = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.support.greedy", str(demo_model())],
        input=json.dumps(first_turns),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
        cwd=ROOT,
    )
    own = json.loads(answered.stdout.splitlines()[-1])
    ours = sum(text == alone for text, alone in zip(texts, own["alone"], strict=True))
    theirs = sum(text == alone for text, alone in zip(own["batched"], own["alone"], strict=True))
    with capsys.disabled():
        print(
            f"\ngreedy text equal to the engine's own at concurrency 1: through the stack {ours} of 80, ",
            end="",
        )
        print(f"the engine itself with all 80 at once {theirs} of 80")
    # Two draws of the same rounding: a difference of fewer than three standard deviations is no difference.
    assert ours >= theirs - 3 * (2 * 80 * 0.25) ** 0.5
