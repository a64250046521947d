"""Figures of the benchmarks of scheduling, from runs as they are read."""

import csv
from pathlib import Path

import pytest

from bench import depth, fairness, length, overload
from bench.rows_of import Lived


def lived(name: str, created: float, started: float, finished: float, tokens: int = 100) -> Lived:
    return Lived(name, "completed", tokens, tokens, created, started, finished)


def test_lengths_come_from_the_trace_and_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    with trace.open("w") as out:
        writer = csv.writer(out)
        writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        writer.writerows([["t", 800 * n, 80 * n] for n in range(1, 11)])
    drawn = length.lengths(trace, 5, "seed")
    assert drawn == length.lengths(trace, 5, "seed")
    assert set(drawn) <= {(100 * n, 10 * n) for n in range(1, 11)}
    with pytest.raises(ValueError, match="no trace"):
        length.lengths(tmp_path / "none.csv", 5, "seed")


def test_the_best_order_leaves_what_the_lengths_leave() -> None:
    assert length.least_ratio([(0, 10), (0, 1)], slots=1) == pytest.approx((1 + 11) / (10 + 11))
    assert length.least_ratio([(0, 10), (0, 1)], slots=2) == 1.0
    assert (
        length.least_ratio([(4, 10), (40, 1)], slots=1) == 1.0
    )  # a prompt token is a quarter of an output token


def test_latencies_of_long_tasks_are_told_apart() -> None:
    found = length.figures([lived("a", 0, 1, 2, tokens=40), lived("b", 0, 5, 10, tokens=400)])
    assert (found["mean_s"], found["long"], found["long_p99_s"], found["tokens_per_s"]) == (
        6.0,
        1,
        10.0,
        44.0,
    )
    arms = {"fcfs": found, "ours": {**found, "mean_s": 3.0}, "oracle": {**found, "mean_s": 2.0}}
    rows = {row.name: row for row in length.rows(length.QUICK, [arms], "vllm", 0.66)}
    assert (rows["mean_latency_ratio"].value, rows["mean_latency_ratio"].met) == (0.5, True)
    assert rows["oracle_gain_share"].value == 0.75


def test_what_was_served_inside_a_run_is_counted_by_tenant() -> None:
    light = [lived("a", 10, 10, 12), lived("b", 2, 3, 4)]
    flood = [lived("c", 0, 9, 11, tokens=300), lived("d", 0, 30, 31)]
    found = fairness.Run("ours", light, flood, 5.0, 20.0).figures()
    assert (found["p99_s"], found["tokens"], found["light"]) == (2.0, [100, 300], 1)
    assert fairness.jain([1, 1]) == 1.0
    assert fairness.jain([1, 0]) == 0.5


def test_a_wait_is_held_against_its_estimate_and_a_retry_against_its_promise() -> None:
    answer = [
        {"status": 202, "task_id": "a", "estimated_wait_s": 4.0, "refused": 0, "told_s": 0.0},
        {"status": 202, "task_id": "b", "estimated_wait_s": 0.1, "refused": 1, "told_s": 9.0},
        {"status": 503, "task_id": "", "estimated_wait_s": None, "refused": 2, "told_s": 5.0},
        {"status": 503, "task_id": "", "estimated_wait_s": None, "refused": 1, "told_s": 500.0},
    ]
    tasks = {"a": lived("a", 0, 5, 6), "b": lived("b", 0, 0.5, 6)}
    rows = {row.name: row.value for row in overload.rows(overload.QUICK, answer, tasks)}
    assert rows == {
        "admitted_wait_p99_over_estimate": 1.25,
        "refused_share": 0.75,
        "retry_after_honest_share": 0.5,
    }
    with pytest.raises(ValueError, match="500"):
        overload.rows(overload.QUICK, [answer[0] | {"status": 500}], tasks)


def test_depths_are_compared_from_the_shallowest_to_the_deepest() -> None:
    found = [
        depth.Timed(1_000, [1.0, 2.0, 3.0], [1.0], 0.0).figures(),
        depth.Timed(100_000, [2.0, 2.2, 4.0], [1.1], 1e6).figures(),
    ]
    rows = {row.name: row for row in depth.rows(depth.FULL, found)}
    assert rows["p50_ratio_100k_over_1k"].value == pytest.approx(1.1)
    assert rows["redis_bytes_per_task"].value == 10.0
