"""The growth benchmark: limits of open files, figures from runs, and one small run of all of it."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.growth import QUICK, Plan, fitting, flight_rows, stream_rows

PLAN = Plan({8: 4}, (4, 12), 2, (10, 1_000), 1.0, 10, 2)


def run(arm: str, rate: float, first_s: float, **core_s: float) -> dict[str, Any]:
    zero = dict.fromkeys(("api", "worker", "engine", "client", "raw", "raw engine", "elsewhere"), 0.0)
    return {
        "arm": arm,
        "in_flight": 8,
        "tokens": 1000,
        "wall_s": 1000 / rate,
        "tokens_per_s": rate,
        "first_p50_s": first_s,
        "first_p99_s": 2 * first_s,
        "core_s": {**zero, **core_s},
    }


RUNS = [
    run("raw", 100, 0.05, raw=0.1),
    run("stack", 99, 0.06, api=0.25, worker=0.3, client=1.0),
    run("stack", 95, 0.08, api=0.15, worker=0.3),
    run("raw", 100, 0.05, raw=0.1),
]


def look(streams: int, cores: float, *live_ms: float) -> dict[str, Any]:
    return {
        "streams": streams,
        "stream_bytes": 20_000 if streams else 0,
        "cores": {"api": cores, "valkey": 0.01, "elsewhere": 0.0},
        "live": [{"p50_ms": one, "p99_ms": 3 * one} for one in live_ms],
    }


def test_what_is_in_flight_is_held_against_the_engine_alone() -> None:
    made = {one.name: one for one in flight_rows(PLAN, RUNS)}
    assert (made["tokens_ratio_8"].low, made["tokens_ratio_8"].high) == (0.95, 0.99)
    spent = made["core_ms_per_token_ours_8"]  # less the raw engine's process; the client's is not ours
    assert (spent.low, spent.high) == (pytest.approx(0.35), pytest.approx(0.45))
    assert spent.note == "api 0.200, worker 0.200"
    assert (made["first_added_p50_ms_8"].low, made["first_added_p50_ms_8"].high) == (10, 30)
    assert made["first_added_p99_ms_8"].high == 60


def test_a_live_stream_is_held_against_itself_without_idle_ones() -> None:
    looks = [look(0, 0.0, 1.0, 2.0), look(10, 0.01, 2.5, 3.5), look(1_000, 0.2, 6.5), look(0, 0.0, 1.0, 2.0)]
    made = {one.name: one for one in stream_rows(PLAN, looks)}
    assert made["stream_kb_10"].value == 20
    assert made["idle_cores_1000"].value == 0.2
    assert (made["live_added_p50_ms_10"].low, made["live_added_p50_ms_10"].high) == (1, 2)
    assert made["live_added_p99_ms_1000"].value == 15
    assert "wanted" not in made["stream_kb_10"].note


def test_fewer_streams_than_wanted_are_said() -> None:
    looks = [look(0, 0.0, 1.0), look(10, 0.0, 1.0), look(400, 0.0, 1.0)]
    assert all("1000 were wanted" in one.note for one in stream_rows(PLAN, looks) if "kb" in one.name)


@pytest.mark.parametrize(
    ("files", "counts"),
    [
        (20_000, (10, 1_000, 10_000)),
        (resource.RLIM_INFINITY, (10, 1_000, 10_000)),
        (4_096, (10, 1_000, 3_596)),
        (1_024, (10, 524)),
    ],
)
def test_counts_of_streams_fit_the_limit_of_open_files(files: int, counts: tuple[int, ...]) -> None:
    assert fitting((10, 1_000, 10_000), files) == counts


def test_a_limit_that_is_too_low_for_anything_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="256 files"):
        fitting((10, 1_000), 256)


def test_the_whole_benchmark_runs(tmp_path: Path) -> None:
    result = tmp_path / "growth.json"
    words = ("bench", "growth", "--quick", "--json", str(result))
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(result.read_text())
    names = {row["name"] for row in written["rows"]}
    for count in QUICK.in_flight:
        assert f"tokens_ratio_{count}" in names
    for count in QUICK.streams:
        assert {f"stream_kb_{count}", f"idle_cores_{count}", f"live_added_p50_ms_{count}"} <= names
    assert [look["streams"] for look in written["arms"]["streams"]] == [0, *QUICK.streams, 0]
