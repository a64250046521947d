"""Which tasks count as slow, and why."""

from dataclasses import replace

import pytest

from core.slow import Cause, LaneHistory, Times

USUAL = Times(total_s=1.0, wait_s=0.1, prefill_s=0.1, decode_s=0.8, prompt_tokens=50, output_tokens=40)


def history(tasks: int = 200) -> LaneHistory:
    lane = LaneHistory(0.99)
    for number in range(tasks):
        assert lane.add(replace(USUAL, total_s=1.0 - number * 1e-4)) is None
    return lane


@pytest.mark.parametrize(
    ("task", "cause"),
    [
        (replace(USUAL, total_s=5.0, wait_s=4.1), Cause.WAIT),
        (replace(USUAL, total_s=5.0, prefill_s=4.1, prompt_tokens=900), Cause.PROMPT_LENGTH),
        (replace(USUAL, total_s=5.0, prefill_s=4.1), Cause.PREFILL),
        (replace(USUAL, total_s=5.0, decode_s=4.8, output_tokens=300), Cause.LONG_DECODE),
        (replace(USUAL, total_s=5.0, decode_s=4.8), Cause.SLOW_DECODE),
        (replace(USUAL, total_s=5.0, decode_s=4.8, preemptions=2), Cause.PREEMPTIONS),
        (replace(USUAL, total_s=5.0, wait_s=4.1, attempts=2), Cause.RETRIES),
    ],
)
def test_a_slow_task_is_told_with_what_made_it_slow(task: Times, cause: Cause) -> None:
    slow = history().add(task)
    assert slow is not None
    assert slow.cause is cause
    assert slow.limit_s == pytest.approx(1.0, abs=0.05)


def test_a_usual_task_is_not_slow_and_few_tasks_say_nothing() -> None:
    assert history().add(USUAL) is None  # the longest so far, by a little
    assert history(10).add(replace(USUAL, total_s=100.0)) is None


def test_a_lane_that_became_slow_as_a_whole_is_its_own_measure() -> None:
    lane = history()
    for _ in range(600):
        lane.add(replace(USUAL, total_s=9.0))
    assert lane.add(replace(USUAL, total_s=9.0)) is None
