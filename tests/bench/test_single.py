"""The single benchmark: stopwatches, figures from runs, what it refuses, and one small run on the real engine."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import engine_timers
from bench.single import _WHAT, QUICK, arm, rows, step_times
from tests.support.demo_model import demo_model

ALL = dict.fromkeys(engine_timers.WATCHED, 1_000_000)
STEP = {
    **ALL,
    "core_step": 30_000_000,
    "execute": 24_000_000,
    "forward": 20_000_000,
    "linear": 10_000_000,
}


def engine(name: str, ms: float, many: float, answer: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    return {
        "arm": name,
        "what": f"as {name}",
        "start_s": 10.0,
        "processes": 2,
        "weight_bytes": 200_000_000,
        "read_bytes_per_s": 20e9 if name == "default" else None,
        "answer": list(answer),
        "step_ms": ms,
        "single_ms": [ms, ms + 2],
        "ids_only_ms": [ms] if name == "default" else [],
        "many_tokens_per_s": many,
        "many": [many],
        "windows": [],
    }


def write(folder: Path, *lines: dict[str, Any]) -> None:
    (folder / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_steps_time_is_split_without_a_rest(tmp_path: Path) -> None:
    write(tmp_path, {"at": 5, **STEP}, {"at": 32_000_005, **STEP}, {"at": 99_000_000, **STEP})
    found = step_times(tmp_path, {"windows": [(0, 64_000_000)]})
    beside = ("outputs", "detokenize", "step")
    assert found["step"] == 32
    assert sum(value for name, value in found.items() if name not in beside) == pytest.approx(32)
    assert found["forward_rest"] == 20 - 10 - 2 - 1
    assert found["core_to_worker"] == 30 - 2 - 25
    assert found["between_steps"] == 2


def test_a_stopwatch_that_never_ran_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"at": 5, **{name: spent for name, spent in STEP.items() if name != "attention"}})
    with pytest.raises(ValueError, match="attention"):
        step_times(tmp_path, {"windows": [(0, 10)]})


def test_calls_count_once_and_for_what_they_are_part_of() -> None:
    file = io.StringIO()
    sums = engine_timers.Sums(file)
    linear = sums.watch("linear", lambda: time.monotonic_ns())
    nested = sums.watch("small_ops", sums.watch("small_ops", lambda: None))

    def step() -> None:
        sums.watch("logits", linear)()
        nested()

    sums.watch("sample_step", step)()
    (line,) = map(json.loads, file.getvalue().splitlines())
    assert set(line) == {"at", "logits", "small_ops", "sample_step"}
    assert line["sample_step"] >= line["logits"] + line["small_ops"]


def test_rows_hold_an_arm_against_the_default_engines_around_it() -> None:
    runs = [
        engine("default", 30, 400),
        engine("one_thread", 50, 200, (1, 2, 4)),
        engine("default", 34, 440),
        engine("default", 99, 999),
        engine("timed", 33, 400),
    ]
    split = dict.fromkeys(("step", *_WHAT), 1.0)
    made = {one.name: one for one in rows(QUICK, runs, split, {"compiled": "it ended:\nlog"})}
    assert made["bound_ms"].value == 10
    assert made["tokens_over_bound"].met is None
    assert (made["one_thread_single"].low, made["one_thread_single"].high) == (pytest.approx(0.6154), 0.64)
    assert made["one_thread_8"].value == pytest.approx(200 / 420, abs=1e-4)
    assert "2 of 3 greedy tokens" in made["one_thread_single"].note
    assert made["no_detokenize_single"].high == pytest.approx(31 / 30, abs=1e-4)
    assert made["compiled_single"].note == "did not run: it ended:"


def test_vllm_finds_the_stopwatches_by_their_folder(tmp_path: Path) -> None:
    how = arm("timed", tmp_path)
    code = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='vllm.general_plugins')])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(how.environment), capture_output=True, text=True, check=True
    )
    assert "bench.engine_timers:install" in done.stdout


def test_another_engine_is_refused(tmp_path: Path) -> None:
    words = ("bench", "single", "--quick", "--engine", "deterministic")
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "vLLM" in done.stderr and "deterministic" in done.stderr


@pytest.mark.vllm
@pytest.mark.full
def test_the_whole_benchmark_runs(tmp_path: Path) -> None:
    models = tmp_path / ".headrace" / "bench-models"
    models.mkdir(parents=True)
    (models / demo_model().name).symlink_to(demo_model())
    result = tmp_path / "single.json"
    words = ("bench", "single", "--quick", "--json", str(result))
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(result.read_text())
    made = {row["name"]: row["value"] for row in written["rows"]}
    assert made["bound_ms"] > 0 and 0 < made["tokens_over_bound"] < 1.5
    assert made["linear_ms"] > made["sampling_ms"] > 0
    assert written["arms"]["timed_ms"]["step"] > 0
