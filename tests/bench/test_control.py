"""The control benchmark's rows, its peers' statements, and one small run of all of it."""

import json
import subprocess
import sys
from pathlib import Path

from bench.control import QUICK, peers, rows


def test_ratios_are_taken_round_by_round() -> None:
    rates = {"ours": [400.0, 300.0], "celery": [200.0, 100.0], "arq": [50.0, 30.0]}
    made = {one.name: one for one in rows(QUICK, rates, [1.0, 2.0, 9.0])}
    assert (made["over_celery"].low, made["over_celery"].high) == (2, 3)
    assert made["over_arq"].met is False
    assert "over_taskiq" not in made  # could not be run
    assert (made["submit_to_result_p50_ms"].value, made["submit_to_result_p50_ms"].met) == (2, True)


def test_plain_celery_can_always_be_run() -> None:
    assert peers()["celery"][0] == sys.executable


def test_the_whole_benchmark_runs(tmp_path: Path) -> None:
    result = tmp_path / "control.json"
    words = ("bench", "control", "--quick", "--json", str(result))
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(result.read_text())["rows"]
    assert [row["name"] for row in written] == ["over_celery", "submit_to_result_p50_ms"]
