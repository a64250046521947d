"""Processes that are killed, stopped, frozen, doubled or restarted."""

import asyncio
import signal

import pytest

from tests.chaos.lab import Lab, Run
from tests.support.waiting import eventually

LONG_LEASE = {"HEADRACE_LEASE_S": "20"}  # where a rescue, on a machine that is busy, would only confuse


@pytest.mark.full
async def test_a_killed_api_costs_its_clients_a_reconnect_and_no_task(lab: Lab) -> None:
    api = lab.child("api")
    await lab.start_worker("w1")
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    await api.kill()
    await lab.restart_api()
    await run.finish()
    await run.check(max_attempts_seen=1)
    assert sum(follower.reconnects for follower in run.followers) > 0


@pytest.mark.full
async def test_tasks_accepted_by_an_api_that_died_before_publishing_are_published(lab: Lab) -> None:
    run = Run(lab)
    await run.begin()
    lab.query("UPDATE tasks SET published_at = NULL")
    with lab.valkey.client(0) as client:
        client.flushall()
    await lab.start_worker("w1")
    await run.finish()
    await run.check(max_attempts_seen=1)


@pytest.mark.full
async def test_a_killed_control_process_is_replaced_by_its_peer(lab: Lab) -> None:
    await lab.start_control()
    victim = await lab.start_worker("w1")
    await lab.start_worker("w2")
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    leader = next(child for child in lab.children if '"event":"leading"' in child.log())
    await leader.kill()
    await victim.kill()
    await run.finish()
    await run.check()


@pytest.mark.full
async def test_two_control_processes_do_nothing_twice(lab: Lab) -> None:
    await lab.start_control()
    victim = await lab.start_worker("w1")
    await lab.start_worker("w2")
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    await victim.kill()
    await run.finish()
    await run.check(max_attempts_seen=2)
    leaders = [child for child in lab.children if '"event":"leading"' in child.log()]
    assert len(leaders) == 1


async def test_a_worker_told_to_stop_hands_back_what_does_not_fit_and_exits_0(lab: Lab) -> None:
    leaving = await lab.start_worker("w1", HEADRACE_DRAIN_S="0.3")
    await lab.start_worker("w2")
    run = Run(lab, max_tokens=100)
    await run.begin()
    await lab.running_on("w1")
    leaving.signal(signal.SIGTERM)
    assert await leaving.ended() == 0
    await run.finish()
    await run.check(max_attempts_seen=3)
    handed_back = lab.query("SELECT count(*) FROM attempts WHERE failure = 'worker_drained'")[0][0]
    lost = lab.query("SELECT count(*) FROM attempts WHERE failure = 'worker_lost'")[0][0]
    assert handed_back > 0
    assert lost == 0, "handed back at once, not after the lease"
    assert lab.query("SELECT count(*) FROM tasks WHERE failures > 0")[0][0] == 0


@pytest.mark.full
async def test_a_rolling_restart_under_load_fails_no_request(lab: Lab) -> None:
    runs = []
    workers = {name: await lab.start_worker(name) for name in ("w1", "w2")}
    for name, worker in workers.items():
        runs.append(Run(lab))
        await runs[-1].begin()
        await lab.running_on(name)
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        await lab.start_worker(name)
    for run in runs:
        await run.finish(within_s=90)
        await run.check()
    assert lab.query("SELECT count(*) FROM attempts WHERE failure = 'worker_lost'")[0][0] == 0


@pytest.mark.full
async def test_a_worker_frozen_past_its_lease_cannot_write_when_it_wakes(lab: Lab) -> None:
    frozen = await lab.start_worker("w1")
    await lab.start_worker("w2")
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    frozen.signal(signal.SIGSTOP)
    await eventually(
        lambda: lab.query("SELECT count(*) FROM attempts WHERE failure = 'worker_lost'")[0][0] >= 5,
        what="its leases were rescued",
    )
    frozen.signal(signal.SIGCONT)
    await eventually(lambda: '"event":"attempt_lost"' in frozen.log(), what="it noticed")
    await run.finish()
    await run.check()


@pytest.mark.full
async def test_a_message_delivered_many_times_is_run_once(lab: Lab) -> None:
    run = Run(lab)
    await run.begin()
    with lab.valkey.client(0) as client:
        queues = [key for key in client.keys("hr:q:*") if client.type(key) == b"list"]
        for queue in queues:
            for message in client.lrange(queue, 0, -1):
                client.lpush(queue, message, message)
    await lab.start_worker("w1", **LONG_LEASE)
    await run.finish()
    await run.check(max_attempts_seen=1)


@pytest.mark.full
async def test_broker_connections_that_break_mid_task_cause_no_second_generation(lab: Lab) -> None:
    """Row 1."""
    await lab.start_worker("w1", **LONG_LEASE)
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    for _ in range(3):
        with lab.valkey.client(0) as client:
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub", skipme=True)
        await run.more_deltas(20)
    await run.finish()
    await run.check(max_attempts_seen=1)


@pytest.mark.full
async def test_a_copy_that_is_acked_away_takes_no_task_with_it_when_the_holder_is_killed(lab: Lab) -> None:
    """Row 2: a redelivered copy keeps its tag, so its ack deletes what would bring the first holder's back."""
    holder = await lab.start_worker("w1", HEADRACE_MAX_NUM_SEQS="100", **LONG_LEASE)
    run = Run(lab, max_tokens=300)
    await run.begin()
    await lab.running_on("w1")
    other = await lab.start_worker("w2")
    lab.cut_off_broker(holder)  # it puts its messages back, and the other one waits for some
    await eventually(lambda: '"event":"claim_refused"' in other.log(), 30.0, "copies were acked away")
    await holder.kill()
    lab.query("UPDATE tasks SET lease_expires_at = now() WHERE state = 'in_progress' AND worker = 'w1'")
    await run.finish(within_s=90)
    await run.check()


async def test_two_hundred_submits_at_once_are_all_accepted_and_all_end(lab: Lab) -> None:
    await lab.start_worker("w1", HEADRACE_DETERMINISTIC_STEP_S="0.005")
    run = Run(lab, count=200, max_tokens=20)
    await run.begin(at_once=200)
    await run.finish()
    await run.check(max_attempts_seen=1)


@pytest.mark.full
async def test_a_frozen_engine_is_rebuilt_and_its_tasks_end(lab: Lab) -> None:
    worker = await lab.start_worker("w1", HEADRACE_ENGINE_STUCK_S="2")
    run = Run(lab, max_tokens=30)
    await run.begin()
    await lab.running_on("w1")
    poison = Run(lab, count=0)
    poison.bodies = [fault("<<fault:freeze>>")]
    await poison.begin()
    await eventually(lambda: '"event":"engine_rebuilt"' in worker.log(), 30.0, "the engine was rebuilt")
    await asyncio.gather(run.finish(90), poison.finish(90))
    await run.check(max_attempts_seen=10)
    assert lab.query("SELECT state, failure FROM tasks WHERE id = :id", id=poison.ids[0])[0] == (
        "failed",
        "engine_dead",
    )


@pytest.mark.parametrize(
    ("marker", "reason"),
    [("<<fault:die>>", "engine_dead"), pytest.param("<<fault:exit>>", "worker_lost", marks=pytest.mark.full)],
)
async def test_a_poison_task_stops_after_its_attempts_and_takes_nobody_with_it(
    lab: Lab, marker: str, reason: str
) -> None:
    """Row 21."""
    await lab.start_worker("w1")
    run = Run(lab, max_tokens=24)
    poison = Run(lab, count=0)
    poison.bodies = [fault(marker)]
    await asyncio.gather(run.begin(), poison.begin())

    async with lab.keeping_worker("w1"):
        await asyncio.gather(run.finish(120), poison.finish(120))
    await run.check(max_attempts_seen=13)
    row = lab.query("SELECT state, failure, failures FROM tasks WHERE id = :id", id=poison.ids[0])[0]
    assert tuple(row) == ("failed", reason, 3)
    innocent = lab.query("SELECT max(failures) FROM tasks WHERE id = ANY(:ids)", ids=run.ids)[0][0]
    assert innocent < 3


def fault(marker: str) -> dict[str, object]:
    """A request that the deterministic engine takes as a fault."""
    return {"model": "deterministic", "messages": [{"role": "user", "content": marker}], "max_tokens": 4}
