"""`headrace batch …` as somebody with a file of rows uses it."""

import asyncio
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.batches.lines import jsonl, request
from tests.support.stacks import ROOT, SharedStack
from tests.support.waiting import eventually


@pytest.fixture
def stack(deterministic_stack: SharedStack) -> SharedStack:
    return deterministic_stack


def start(stack: SharedStack, folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "cli", "batch", *words, "--data", str(stack.data)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(stack: SharedStack, folder: Path, *words: str, code: int = 0) -> str:
    """The command's output."""
    process = start(stack, folder, *words)
    out, err = process.communicate(timeout=90)
    assert process.returncode == code, out + err
    return out + err


def submitted(folder: Path) -> str:
    """The id of the batch, once the command has written it down."""
    state = folder / "out.jsonl.batch" / "state.json"

    def written() -> bool:
        return state.exists() and json.loads(state.read_text())["chunks"][0]["batch_id"] is not None

    asyncio.run(eventually(written, 30, "the batch is submitted"))
    return str(json.loads(state.read_text())["chunks"][0]["batch_id"])


def count_batches(stack: SharedStack) -> int:
    with psycopg.connect(stack.database_url) as connection:
        row = connection.execute("SELECT count(*) FROM batches").fetchone()
    assert row is not None
    return int(row[0])


def test_lines_of_text_become_answers_by_row(stack: SharedStack, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\n\ntwo\nthree\n")
    said = run(
        stack, tmp_path, "run", "in.txt", "-o", "out.jsonl", "--template", "Say {text}", "--max-tokens", "4"
    )
    assert "3 results, 0 failed" in said
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert all(row["output"] and row["error"] is None for row in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.jsonl"]


def test_a_table_s_columns_fill_a_template_and_failed_rows_say_why(
    stack: SharedStack, tmp_path: Path
) -> None:
    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["name", "text"], ["ä, b", "short"], ["c", "word " * 9000]])
    said = run(
        stack,
        tmp_path,
        *("run", "in.csv", "-o", "out.csv", "--template", "{name}: {text}", "--max-tokens", "3"),
        *("--system", "Be brief."),
        code=1,
    )
    assert "2 results, 1 failed" in said
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["0", "1"]
    assert rows[0]["output"] and not rows[0]["error"]
    assert rows[1]["error"].startswith("context_length_exceeded")


def test_a_file_of_requests_gives_the_api_s_lines_in_its_order(stack: SharedStack, tmp_path: Path) -> None:
    wanted = [
        request(stack.model, f"id-{i}", "Hello", max_tokens=2, **({"n": 0} if i == 1 else {}))
        for i in range(4)
    ]
    (tmp_path / "in.jsonl").write_bytes(jsonl(wanted))
    run(stack, tmp_path, "run", "in.jsonl", "-o", "out.jsonl", code=1)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["id-0", "id-1", "id-2", "id-3"]
    assert [line["response"]["status_code"] for line in lines] == [200, 400, 200, 200]
    batch_id = lines[0]["id"].split("_")[2]
    status = run(stack, tmp_path, "status", f"batch_{batch_id}")
    assert "completed" in status and "3 completed, 1 failed, of 4" in status
    again = run(stack, tmp_path, "retry", f"batch_{batch_id}")
    listed = run(stack, tmp_path, "list", "--limit", "1")
    assert listed.split()[0] == again.split()[0]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on_with_the_same_batch(
    stack: SharedStack, tmp_path: Path, how: signal.Signals
) -> None:
    wanted = [request(stack.model, f"id-{i}", "Hello", max_tokens=300, ignore_eos=True) for i in range(5)]
    (tmp_path / "in.jsonl").write_bytes(jsonl(wanted))
    before = count_batches(stack)
    words = ("run", "in.jsonl", "-o", "out.jsonl")
    process = start(stack, tmp_path, *words)
    submitted(tmp_path)
    process.send_signal(how)
    _, said = process.communicate(timeout=30)
    if how is signal.SIGINT:
        assert process.returncode == 130, said
        assert "interrupted" in said
    assert not (tmp_path / "out.jsonl").exists()
    (tmp_path / "other.txt").write_text("x\n")
    other = run(stack, tmp_path, "run", "other.txt", "-o", "out.jsonl", "--template", "{text}", code=1)
    assert "another input" in other
    assert "5 results, 0 failed" in run(stack, tmp_path, *words)
    assert count_batches(stack) == before + 1
    assert "not written over" in run(stack, tmp_path, *words, code=1)


def test_a_batch_is_cancelled(stack: SharedStack, tmp_path: Path) -> None:
    wanted = [request(stack.model, "a", "Hello", max_tokens=3000, ignore_eos=True)]
    (tmp_path / "in.jsonl").write_bytes(jsonl(wanted))
    process = start(stack, tmp_path, "run", "in.jsonl", "-o", "out.jsonl")
    batch_id = submitted(tmp_path)
    assert "cancel" in run(stack, tmp_path, "cancel", batch_id)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and ("1 failed" in said or "1 without a result" in said)


@pytest.mark.parametrize(
    ("name", "content", "words", "why"),
    [
        ("in.txt", "x\n", [], "--template"),
        ("in.txt", "x\n", ["--template", "no column"], "names no column"),
        ("in.txt", "x\n", ["--template", "{other}"], "row 0 has no 'other'; there are text"),
        ("in.txt", "x\n", ["--template", "{text.__class__}"], "names no column"),
        ("in.txt", "x\n", ["--template", "{text"], "--template"),
        ("in.txt", "", ["--template", "{text}"], "holds no request"),
        ("in.pdf", "x", ["--template", "{text}"], "rows are read of"),
        ("in.jsonl", '{"a": 1}\n', [], "rows need a --template"),
        ("in.jsonl", "{\n", ["--template", "{a}"], "row 0 is not JSON"),
        ("in.csv", "text\nx\n", ["--template", "{text}", "--model", "absent"], "does not exist"),
    ],
)
def test_a_bad_input_is_told_by_name_and_leaves_nothing(
    stack: SharedStack, tmp_path: Path, name: str, content: str, words: list[str], why: str
) -> None:
    (tmp_path / name).write_text(content)
    said = run(stack, tmp_path, "run", name, "-o", "out.jsonl", *words, code=1)
    assert why in said and "Traceback" not in said


def test_parquet_without_its_package_names_the_extra(stack: SharedStack, tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    said = run(stack, tmp_path, "run", "in.parquet", "-o", "out.jsonl", "--template", "{text}", code=1)
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        assert "headrace[parquet]" in said
    else:
        assert "no Parquet file" in said


def test_without_a_stack_it_says_what_to_give(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", "batch", "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no stack runs on .headrace" in done.stderr and "--api" in done.stderr
