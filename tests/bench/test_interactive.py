"""The interactive benchmark's figures, its client's reading of streams, and one small run of all of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.client import LoadError
from bench.interactive import FULL, QUICK, Run, arrivals, measured, rows
from bench.mixed_client import chunk_moments, used_tokens

DELTA = b"id: 3\nevent: task.delta\ndata: {}\n\n"
END = b'id: 4\nevent: task.completed\ndata: {"usage":{"completion_tokens":2}}\n\n'


def test_chunks_are_told_by_the_moment_their_bytes_came() -> None:
    head = 100
    marks = [
        (head, 1.0),
        (head + len(DELTA), 2.0),
        (head + 2 * len(DELTA) + 10, 3.0),
        (head + 2 * len(DELTA) + len(END), 4.0),
    ]
    assert chunk_moments(DELTA * 2 + END, marks) == [2.0, 3.0]


def test_tokens_come_from_the_final_event() -> None:
    assert used_tokens(DELTA + END) == 2
    assert used_tokens(DELTA + END.replace(b"completed", b"cancelled")) == 2
    assert used_tokens(b'id: 2\nevent: task.cancelled\ndata: {"usage":null}\n\n') == 0


@pytest.mark.parametrize("kind", [b"failed", b"expired", b"incomplete"])
def test_a_task_that_failed_is_no_measurement(kind: bytes) -> None:
    with pytest.raises(LoadError):
        used_tokens(DELTA + END.replace(b"completed", kind))


def test_a_stream_that_broke_off_is_no_measurement() -> None:
    with pytest.raises(LoadError):
        used_tokens(DELTA)


def test_only_what_lies_in_the_window_is_measured() -> None:
    answer: dict[str, Any] = {
        "batch": [{"asked_s": 0, "tokens": 40, "chunks_s": [0.5, 1.5, 2.5, 3.5]}],
        "people": [
            {"asked_s": 0.2, "tokens": 4, "chunks_s": [0.9, 1.2]},
            {"asked_s": 1.0, "tokens": 4, "chunks_s": [1.25, 2.0]},
        ],
    }
    run = measured("ours", answer, 1.0, 3.0)
    assert run == Run("ours", [0.25], 10.0, 3.0, 0.75)


def test_people_come_at_random_at_the_rate_asked_for_and_at_the_same_moments_again() -> None:
    moments = list(arrivals(0.5, 4000, 1))
    assert 1800 < len(moments) < 2200
    assert moments == list(arrivals(0.5, 4000, 1)) != list(arrivals(0.5, 4000, 2))


def test_rows_come_from_rounds() -> None:
    def round_(ours_s: float) -> dict[str, Run]:
        return {
            "idle": Run("idle", [0.1], 0, 16, None),
            "batch": Run("batch", [], 296, 0, 0.1),
            "fifo": Run("fifo", [20.0], 280, 16, 0.1),
            "ours": Run("ours", [ours_s], 266, 16, 0.1),
        }

    made = {one.name: one for one in rows(FULL, [round_(0.2), round_(0.4)], "vllm")}
    assert (made["ttft_p99_over_idle"].low, made["ttft_p99_over_idle"].high) == (1.0, 3.0)
    assert made["ttft_p99_over_idle"].met is True
    assert (made["ttft_p99_fifo_over_ours"].low, made["ttft_p99_fifo_over_ours"].high) == (50, 100)
    assert made["batch_tokens_ratio"].value == 0.95
    assert "no model" in rows(QUICK, [round_(0.2)], "deterministic")[0].note


def test_the_whole_benchmark_runs_on_the_deterministic_engine(tmp_path: Path) -> None:
    result = tmp_path / "interactive.json"
    words = ("bench", "interactive", "--quick", "--engine", "deterministic", "--json", str(result))
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(result.read_text())
    names = [row["name"] for row in written["rows"]]
    assert names == ["ttft_p99_over_idle", "ttft_p99_fifo_over_ours", "batch_tokens_ratio"]
    assert all("no model" in row["note"] for row in written["rows"])
    assert [len(one) for one in written["arms"]["rounds"]] == [4]
