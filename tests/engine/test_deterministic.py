"""What the deterministic engine promises beyond the protocol: repeatable output, shared steps, faults on demand."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.engines import chat, request, run
from workers.deterministic import (
    FAULT_DIE,
    FAULT_EXIT,
    FAULT_FREEZE,
    FAULT_REFUSE,
    DeterministicEngine,
)
from workers.engine import EngineDeadError, RequestRejectedError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, "-m", "workers.deterministic", "--make-model", str(path)], check=True)
    return path


@pytest_asyncio.fixture(loop_scope="session")
async def engine(folder: Path) -> AsyncIterator[DeterministicEngine]:
    made = DeterministicEngine("words", folder, max_num_seqs=4, step_s=0)
    await made.start()
    yield made
    await made.stop()


async def test_output_does_not_depend_on_what_else_runs(engine: DeterministicEngine) -> None:
    alone = await run(engine, request(chat("same?"), max_tokens=60))
    crowd = await asyncio.gather(
        *(run(engine, request(chat(f"other {number}"), max_tokens=60)) for number in range(9)),
        run(engine, request(chat("same?"), max_tokens=60)),
    )
    assert crowd[-1].only.ids == alone.only.ids
    assert len({result.only.text for result in crowd}) == 10


async def test_prompt_seed_and_choice_each_change_it(engine: DeterministicEngine) -> None:
    bodies = [chat("a"), chat("b"), chat("a", seed=1)]
    texts = {(await run(engine, request(body))).only.text for body in bodies}
    several = await run(engine, request(chat("a", n=3)))
    assert len(texts | {choice.text for choice in several.choices.values()}) == 5


async def test_a_run_cut_anywhere_and_resumed_equals_an_undisturbed_one(engine: DeterministicEngine) -> None:
    body = chat("Where do rivers go?", stop=["never said"], logprobs=True, top_logprobs=2)
    whole = (await run(engine, request(body, max_tokens=500))).only
    assert whole.finish == "stop"
    text = ""
    for cut in range(len(whole.ids)):
        rest = (await run(engine, request(body, max_tokens=500, emitted=whole.ids[:cut]))).only
        assert rest.ids == whole.ids[cut:]
        assert whole.text == text + rest.text
        assert rest.logprobs == whole.logprobs[cut:]
        assert rest.finish == whole.finish
        text += whole.logprobs[cut]["token"]


async def test_running_requests_share_steps(engine: DeterministicEngine) -> None:
    before = engine.steps
    await asyncio.gather(
        *(run(engine, request(chat(f"{number}", ignore_eos=True), max_tokens=50)) for number in range(4))
    )
    assert engine.steps - before < 60


async def test_a_frozen_engine_fails_its_check_and_goes_on_when_thawed(engine: DeterministicEngine) -> None:
    task = asyncio.create_task(run(engine, request(chat(FAULT_FREEZE), max_tokens=5)))
    with pytest.raises(TimeoutError):
        while not task.done():
            await engine.check(timeout_s=0.05)
    assert not task.done()
    engine.thaw()
    assert (await task).only.finish == "length"


async def test_a_killed_engine_fails_all_its_requests_and_can_be_started_again(
    engine: DeterministicEngine,
) -> None:
    tasks = [
        asyncio.create_task(run(engine, request(chat("?", ignore_eos=True), max_tokens=5000)))
        for _ in "12345"
    ]
    while (await engine.check(timeout_s=1)).running < 4:
        pass
    engine.kill()
    failures = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(failure) for failure in failures] == [EngineDeadError] * 5
    with pytest.raises(EngineDeadError):
        await engine.check(timeout_s=1)
    with pytest.raises(EngineDeadError):
        await run(engine, request(chat()))
    await engine.start()
    assert (await run(engine, request(chat(), max_tokens=3))).usage.output_tokens == 3


async def test_markers_in_a_prompt_make_faults(engine: DeterministicEngine) -> None:
    with pytest.raises(RequestRejectedError):
        await run(engine, request(chat(f"please {FAULT_REFUSE}")))
    with pytest.raises(EngineDeadError):
        await run(engine, request(chat(f"please {FAULT_DIE}")))


def test_a_marker_can_kill_the_process(folder: Path) -> None:
    script = f"""
import asyncio
from tests.support.engines import chat, request, run
from workers.deterministic import DeterministicEngine
async def main():
    engine = DeterministicEngine("words", {str(folder)!r})
    await engine.start()
    await run(engine, request(chat({FAULT_EXIT!r})))
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL


async def test_a_folder_without_a_model_is_told_apart_from_a_bug(tmp_path: Path) -> None:
    with pytest.raises(EngineDeadError, match="no model"):
        await DeterministicEngine("words", tmp_path).start()


def test_it_needs_neither_torch_nor_vllm() -> None:
    script = (
        "import sys, workers.engine, workers.deterministic, runtime.chat_template;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'vllm', 'transformers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
