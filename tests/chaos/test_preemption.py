"""Batch tasks lend their slots to people and go on as if nothing had happened."""

import asyncio

from tests.chaos.lab import Lab, Run
from tests.support.waiting import eventually

SLOTS = {
    "HEADRACE_MAX_NUM_SEQS": "4",
    "HEADRACE_RESERVED_SLOTS": "1",
    "HEADRACE_PREEMPTION_REST_S": "0.2",
    "HEADRACE_MAX_PREEMPTIONS": "2",
}


def preemptions(lab: Lab) -> dict[str, int]:
    rows = lab.query("SELECT id, preemptions FROM tasks WHERE preemptions > 0")
    return {row.id: row.preemptions for row in rows}


def restarts(run: Run) -> list[str]:
    return [
        event["type"]
        for follower in run.followers
        for event in follower.events
        if "restarted" in event["type"]
    ]


async def both(lab: Lab) -> tuple[Run, Run]:
    """Batch work on all slots it may have, then people."""
    batch = Run(lab, count=6, max_tokens=100, priority="batch")
    await batch.begin()
    await lab.running_on("w1", at_least=3)
    people = Run(lab, count=9, max_tokens=20, priority="interactive")
    await people.begin()
    return batch, people


async def test_lent_slots_change_no_text_no_usage_and_no_attempt(lab: Lab) -> None:
    await lab.start_worker("w1", **SLOTS)
    batch, people = await both(lab)
    await asyncio.gather(batch.finish(), people.finish())
    await batch.check(max_attempts_seen=1)
    await people.check(max_attempts_seen=1)
    lent = preemptions(lab)
    assert lent and set(lent) <= set(batch.ids)
    assert max(lent.values()) <= 2
    assert restarts(batch) == []


async def test_a_worker_killed_while_tasks_have_no_slot_costs_none_of_them(lab: Lab) -> None:
    victim = await lab.start_worker("w1", **SLOTS)
    batch, people = await both(lab)
    await eventually(
        lambda: any(
            row.lent
            for row in lab.query("SELECT preemptions > 0 AS lent FROM tasks WHERE state = 'in_progress'")
        ),
        10.0,
        "a task has lent its slot",
    )
    await victim.kill()
    await lab.start_worker("w2", **SLOTS)
    await asyncio.gather(batch.finish(), people.finish())
    await batch.check()
    await people.check()
    assert restarts(batch) == []


async def test_a_task_that_may_not_continue_lends_nothing_and_a_cancelled_one_ends_without_a_slot(
    lab: Lab,
) -> None:
    await lab.start_worker("w1", **SLOTS, HEADRACE_DETERMINISTIC_STEP_S="0.1")
    batch = Run(lab, count=3, max_tokens=200, priority="batch")
    batch.bodies[0] |= {"seed": 7, "temperature": 1.0}
    await batch.begin()
    await lab.running_on("w1", at_least=3)
    people = Run(lab, count=4, max_tokens=60, priority="interactive")
    await people.begin()
    await eventually(lambda: len(preemptions(lab)) == 2, 10.0, "the others lent theirs")
    assert batch.ids[0] not in preemptions(lab)
    lent = next(iter(preemptions(lab)))
    assert (await lab.post(f"/v1/tasks/{lent}/cancel")).status_code < 300
    await eventually(
        lambda: lab.query("SELECT state FROM tasks WHERE id = :id", id=lent)[0].state == "cancelled",
        2.0,
        "it ended",
    )
    await asyncio.gather(batch.finish(), people.finish())
    await batch.check({"cancelled": 1}, max_attempts_seen=1)
    await people.check(max_attempts_seen=1)
