"""A worker that the network cuts off, and clocks that disagree."""

import shutil

import pytest

from tests.chaos.lab import Lab, Run
from tests.chaos.network import network
from tests.support.waiting import eventually


@pytest.mark.full
async def test_a_worker_cut_off_past_its_lease_and_back_writes_nothing_stale(lab: Lab) -> None:
    async with network() as cut:
        stores = {
            "HEADRACE_DATABASE_URL": await cut.reachable(lab.postgres.url),
            "HEADRACE_BROKER_URL": await cut.reachable(lab.valkey.url_of(0)),
            "HEADRACE_STREAMS_URL": await cut.reachable(lab.valkey.url_of(1)),
        }
        away = await lab.start_worker("w1", prefix=cut.prefix, **stores)
        await lab.start_worker("w2")
        run = Run(lab)
        await run.begin()
        await lab.running_on("w1")
        cut.cut()
        await eventually(
            lambda: lab.query("SELECT count(*) FROM attempts WHERE failure = 'worker_lost'")[0][0] >= 5,
            30.0,
            "its leases were rescued",
        )
        cut.mend()
        await eventually(lambda: '"event":"attempt_lost"' in away.log(), 60.0, "it noticed")
        await run.finish(within_s=90)
        await run.check()


@pytest.mark.full
@pytest.mark.parametrize("skew", ["+2h", "-2h"])
async def test_leases_do_not_depend_on_a_workers_clock(lab: Lab, skew: str) -> None:
    faketime = shutil.which("faketime")
    if faketime is None:
        pytest.skip("needs the faketime command")
    prefix = [faketime, "--exclude-monotonic", "-f", skew]
    skewed = await lab.start_worker("w1", prefix=prefix, HEADRACE_LEASE_S="4")
    await lab.start_worker("w2")
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    await skewed.kill()
    await run.finish()
    await run.check()
    assert (
        lab.query("SELECT count(*) FROM attempts WHERE failure = 'worker_lost' AND worker = 'w2'")[0][0] == 0
    )


@pytest.mark.full
async def test_a_running_task_whose_message_is_gone_is_still_rescued(lab: Lab) -> None:
    """Row 2, its outcome: no unacked entry is left that could bring the message back."""
    victim = await lab.start_worker("w1")
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    with lab.valkey.client(0) as client:
        client.delete("hr:q:unacked", "hr:q:unacked_index")
    await victim.kill()
    await lab.start_worker("w2")
    await run.finish()
    await run.check()


async def test_a_task_cancelled_while_every_worker_is_down_never_runs(lab: Lab) -> None:
    """Row 20."""
    run = Run(lab)
    await run.begin()
    cancelled = run.followers[:20]
    for follower in cancelled:
        await lab.post(f"/v1/tasks/{follower.task_id}/cancel")
    await lab.start_worker("w1")
    await run.finish()
    await run.check(allowed={"cancelled": 20})
    attempts = lab.query(
        "SELECT max(attempt), sum(usage_output_tokens) FROM tasks WHERE state = 'cancelled'"
    )[0]
    assert tuple(attempts) == (0, 0)
