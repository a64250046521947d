"""Slots lent on vLLM: what was streamed stays, and the rest follows without a gap.

The share of answers equal to an undisturbed run is printed, not asserted: greedy text depends on the batch.
"""

from pathlib import Path

import pytest

from tests.chaos.lab import Run, vllm_lab

pytestmark = [pytest.mark.vllm, pytest.mark.full]


async def test_a_task_that_lent_its_slot_goes_on_after_what_it_streamed(tmp_path: Path) -> None:
    slots = {
        "HEADRACE_MAX_NUM_SEQS": "6",
        "HEADRACE_RESERVED_SLOTS": "1",
        "HEADRACE_PREEMPTION_REST_S": "0.5",
    }
    async with vllm_lab(tmp_path, **slots) as lab:
        texts = []
        for disturbed in (False, True):
            batch = Run(lab, count=8, max_tokens=96, priority="batch")
            for body in batch.bodies:
                body["temperature"] = 0
            await batch.begin()
            await lab.running_on("w1", at_least=5)
            if disturbed:
                people = Run(lab, count=8, max_tokens=16, priority="interactive")
                await people.begin()
                await people.finish(within_s=180)
                people.check_promises(max_attempts_seen=1)
            await batch.finish(within_s=180)
            rows = batch.check_promises(max_attempts_seen=1)
            events = [event["type"] for follower in batch.followers for event in follower.events]
            assert "task.restarted" not in events
            texts.append([follower.text for follower in batch.followers])
        lent = [row.preemptions for row in rows.values()]
        assert sum(lent) > 0
        same = [first == second for first, second in zip(*texts, strict=True)]
        print(f"\n{sum(lent)} slots lent; greedy text identical in {sum(same)} of {len(same)} tasks")
