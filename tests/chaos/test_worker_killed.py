"""kill -9 of a worker."""

from tests.chaos.lab import Lab, Run


async def test_a_killed_workers_tasks_continue_on_its_peer_from_the_tokens_already_sent(lab: Lab) -> None:
    victim = await lab.start_worker("w1")
    await lab.start_worker("w2")
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    await victim.kill()
    await run.finish()
    await run.check()
    moved = lab.query("SELECT id FROM tasks WHERE attempt > 1")
    assert moved, "the kill hit running tasks"
    restarted = [
        event for follower in run.followers for event in follower.events if "restarted" in event["type"]
    ]
    assert restarted == []


async def test_a_killed_worker_without_a_peer_costs_no_task_once_it_is_back(lab: Lab) -> None:
    victim = await lab.start_worker("w1")
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    await victim.kill()
    await lab.start_worker("w1")
    await run.finish()
    await run.check()
