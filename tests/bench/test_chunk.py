"""The chunk benchmark: stamps read back, differences within pairs, and one small run of all of it."""

import json
import subprocess
import sys
from pathlib import Path

from bench.chunk import QUICK, rows
from bench.stamps import added_ms


def run(arm: str, later: float, first: float = 1.0) -> dict[str, object]:
    return {"arm": arm, "later_p50_ms": later, "later_p99_ms": 2 * later, "first_p50_ms": first}


def test_stamps_are_read_from_whatever_pieces_arrived() -> None:
    heard = [
        (5_000_000, b'data: {"choices":[{"delta":{"content":"1000000 "}}]}\n\n'),
        (
            9_000_000,
            b'data: {"delta":{"content":"2000000 3000000 "}}\n\ndata: {"delta":{"content":"4000000 "}}',
        ),
    ]
    assert added_ms(heard) == [4.0, 7.0, 6.0, 5.0]


def test_what_is_added_is_a_difference_within_each_pair() -> None:
    made = {
        one.name: one
        for one in rows(QUICK, [run("direct", 1), run("stack", 2, 3), run("stack", 4, 4), run("direct", 1)])
    }
    assert (made["added_p50_ms"].low, made["added_p50_ms"].high) == (1, 3)
    assert made["added_p99_ms"].high == 6
    assert (made["first_chunk_ratio"].low, made["first_chunk_ratio"].high) == (1, 1.5)


def test_the_whole_benchmark_runs(tmp_path: Path) -> None:
    result = tmp_path / "chunk.json"
    words = ("bench", "chunk", "--quick", "--json", str(result))
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(result.read_text())["rows"]
    assert [row["name"] for row in written] == ["added_p50_ms", "added_p99_ms", "first_chunk_ratio"]
