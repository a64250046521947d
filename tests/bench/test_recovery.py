"""The recovery benchmark's judgement of one task, and one small run of all of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.recovery import Followed, Found, Plan, judge, rows

KILLED_AT = 10.0


def delta(text: str) -> dict[str, Any]:
    return {"type": "task.delta", "choices": [{"index": 0, "delta": {"content": text}}]}


def followed(*events: tuple[float, dict[str, Any]], text: str = "ab", status: str = "completed") -> Followed:
    numbered = [(at, {"sequence": number, **event}) for number, (at, event) in enumerate(events, start=1)]
    answer = {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": 2}}
    return Followed("task_1", numbered, {"status": status, "response": answer})


FIRST = [(8.0, {"type": "task.started", "attempt": 1}), (9.0, delta("a"))]
TAKEOVER = (13.0, {"type": "task.started", "attempt": 2})
END = (14.0, {"type": "task.completed"})


def test_recovery_counts_from_the_kill_to_the_first_text_of_the_attempt_that_took_over() -> None:
    late = (10.01, delta(""))  # of the dead worker, still on its way
    found = judge(followed(*FIRST, late, TAKEOVER, (13.5, delta("b")), END), KILLED_AT, 2)
    assert found == Found(recovery_s=3.5, lost=False, duplicated=False, prefix_changed=False)


def test_a_task_of_the_peer_has_no_recovery_time() -> None:
    assert judge(followed(*FIRST, (9.5, delta("b")), END), KILLED_AT, 2).recovery_s is None


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        (followed(*FIRST, TAKEOVER, (13.5, delta("b")), END, status="failed"), "lost"),
        (followed(*FIRST, TAKEOVER, (13.5, delta("b")), END, END), "duplicated"),
        (followed(*FIRST, TAKEOVER, (13.5, delta("ab")), END), "prefix_changed"),
        (followed(*FIRST, TAKEOVER, (13.5, {"type": "task.restarted"}), END), "prefix_changed"),
        (followed(*FIRST, TAKEOVER, (13.5, delta("b")), END, text="xb"), "prefix_changed"),
    ],
)
def test_every_broken_promise_is_seen(task: Followed, fault: str) -> None:
    assert getattr(judge(task, KILLED_AT, 2), fault)


def test_other_than_the_tokens_asked_for_counts_as_duplicated() -> None:
    assert judge(followed(*FIRST, (9.5, delta("b")), END), KILLED_AT, 3).duplicated


def test_rows_sum_over_kills_and_a_run_that_hit_nothing_is_none() -> None:
    good, lost = Found(3.0, False, False, False), Found(4.0, True, False, False)
    plan = Plan(kills=2, in_flight=2, output_tokens=2, within_s=0)
    made = {one.name: one for one in rows(plan, [[good, good], [good, lost]], "vllm")}
    assert (made["recovery_s_max"].value, made["lost"].value, made["duplicated"].value) == (4.0, 1, 0)
    with pytest.raises(ValueError, match="no kill hit"):
        rows(plan, [[Found(None, False, False, False)]], "vllm")


def test_the_whole_benchmark_runs_on_the_deterministic_engine(tmp_path: Path) -> None:
    result = tmp_path / "recovery.json"
    words = ("bench", "recovery", "--quick", "--engine", "deterministic", "--json", str(result))
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    written = {row["name"]: row for row in json.loads(result.read_text())["rows"]}
    assert list(written) == ["recovery_s_median", "recovery_s_max", "lost", "duplicated", "prefix_changed"]
    assert [written[name]["value"] for name in ("lost", "duplicated", "prefix_changed")] == [0, 0, 0]
    assert all("no model" in row["note"] for row in written.values())
