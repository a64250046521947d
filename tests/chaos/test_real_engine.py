"""Three faults on vLLM: a worker killed, its engine killed, a worker told to stop.

What was streamed must be the answer's beginning, whatever the next attempt makes of the rest: greedy text depends
on the batch, by rounding. The share of answers equal to an undisturbed run is printed, not asserted.
"""

import signal
from collections.abc import AsyncIterator

import psutil
import pytest

from tests.chaos.lab import Lab, Run, vllm_lab
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.full]
TOKENS = 64


@pytest.fixture(scope="module")
async def real_lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """One deployment on vLLM for the three; each leaves a worker running."""
    async with vllm_lab(tmp_path_factory.mktemp("real-engine")) as lab:
        yield lab


@pytest.fixture(scope="module")
async def undisturbed(real_lab: Lab) -> list[str]:
    """What the same requests are answered when nothing happens."""
    run = await begun(real_lab)
    await run.finish(within_s=180)
    run.check_promises(max_attempts_seen=1)
    return [follower.text for follower in run.followers]


async def begun(lab: Lab) -> Run:
    """A hundred greedy requests of the same texts each time."""
    run = Run(lab, max_tokens=TOKENS)
    for body in run.bodies:
        body["temperature"] = 0
    await run.begin()
    return run


async def check(fault: str, run: Run, undisturbed: list[str]) -> None:
    """Wait for the ends, ask the questions, print the share."""
    await run.finish(within_s=300)
    rows = run.check_promises()
    moved = [row for row in rows.values() if row.attempt > 1]
    assert moved, "the fault hit running tasks"
    restarted = [event for f in run.followers for event in f.events if event["type"] == "task.restarted"]
    assert restarted == []
    texts = dict(zip(run.ids, zip((f.text for f in run.followers), undisturbed, strict=True), strict=True))
    same = [ours == theirs for ours, theirs in texts.values()]
    same_moved = [texts[row.id][0] == texts[row.id][1] for row in moved]
    print(
        f"\n{fault}: greedy text identical to the undisturbed run in {sum(same)} of {len(same)} tasks, "
        f"in {sum(same_moved)} of the {len(same_moved)} that moved"
    )


async def test_a_killed_engine_process_costs_no_task(real_lab: Lab, undisturbed: list[str]) -> None:
    worker = real_lab.child("w1")
    run = await begun(real_lab)
    await real_lab.running_on("w1")
    engines = [
        child
        for child in psutil.Process(worker.process.pid).children(recursive=True)
        if "EngineCore" in " ".join([child.name(), *child.cmdline()])
    ]
    assert engines
    for engine in engines:
        engine.kill()
    await eventually(lambda: '"event":"engine_rebuilt"' in worker.log(), 180.0, "the engine was rebuilt")
    await check("engine killed", run, undisturbed)


async def test_a_worker_told_to_stop_hands_its_tasks_to_the_next_one(
    real_lab: Lab, undisturbed: list[str]
) -> None:
    leaving = real_lab.child("w1")
    run = await begun(real_lab)
    await real_lab.running_on("w1")
    leaving.signal(signal.SIGTERM)
    assert await leaving.ended(60) == 0
    await real_lab.start_worker("w1")
    await check("worker told to stop", run, undisturbed)
    lost = real_lab.query(
        "SELECT count(*) FROM attempts WHERE failure = 'worker_lost' AND task_id = ANY(:ids)", ids=run.ids
    )
    assert lost[0][0] == 0


async def test_a_killed_worker_costs_no_task(real_lab: Lab, undisturbed: list[str]) -> None:
    run = await begun(real_lab)
    await real_lab.running_on("w1")
    await real_lab.child("w1").kill()
    await real_lab.start_worker("w1")
    await check("worker killed", run, undisturbed)
