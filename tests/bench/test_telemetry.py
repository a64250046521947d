"""The telemetry benchmark's figures, and one small run of all of it."""

import json
import subprocess
import sys
from pathlib import Path

from bench.telemetry import rows


def run(arm: str, rate: float) -> dict[str, object]:
    return {
        "arm": arm,
        "tokens": 1000,
        "wall_s": 1000 / rate,
        "tokens_per_s": rate,
        "core_s": {"elsewhere": 0.0},
    }


def test_the_ratio_is_that_of_neighbouring_runs() -> None:
    runs = [run("off", 100), run("on", 99), run("on", 198), run("off", 200)]
    (row,) = rows(runs, "vllm", 96, 64)
    assert (row.value, row.low, row.high, row.met) == (0.99, 0.99, 0.99, True)


def test_a_quick_run_on_made_up_text_goes_through(tmp_path: Path) -> None:
    result = tmp_path / "telemetry.json"
    words = ("bench", "telemetry", "--quick", "--engine", "deterministic", "--json", str(result))
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(result.read_text())
    assert [row["name"] for row in found["rows"]] == ["throughput_on_over_off"]
    assert found["arms"]["exports"] > 0
