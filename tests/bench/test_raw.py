"""The raw benchmark's figures, its prompts, its client's reading of a stream, and one small run of all of it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.client import Connection, LoadError, final_usage
from bench.machine import CpuMeter, describe, family
from bench.prompts import chat_messages
from bench.raw import QUICK, core_ms_per_token, rows
from runtime.chat_template import ModelTokenizer
from workers.deterministic import make_model

STREAM = (
    b"id: 1\nevent: task.queued\ndata: {}\n\n"
    b'id: 3\nevent: task.delta\ndata: {"choices":[]}\n\n'
    b'id: 4\nevent: task.completed\ndata: {"sequence":4,"usage":{"completion_tokens":2}}\n\n'
)


def run(arm: str, rate: float, in_flight: int = 64, **core_s: float) -> dict[str, Any]:
    zero = dict.fromkeys(("api", "worker", "engine", "client", "raw", "raw engine", "elsewhere"), 0.0)
    return {
        "arm": arm,
        "in_flight": in_flight,
        "tokens": 1000,
        "wall_s": 1000 / rate,
        "tokens_per_s": rate,
        "core_s": {**zero, **core_s},
    }


def test_rows_come_from_pairs() -> None:
    runs = [
        run("raw", 300, raw=0.5),
        run("stack", 285, api=0.25, worker=0.6, engine=6, client=0.1),
        run("stack", 297, api=0.25, worker=0.55, engine=6),
        run("raw", 300, raw=0.5),
    ]
    scale = [run("stack", 30, 1), run("stack", 240, 32)]
    made = {one.name: one for one in rows(QUICK, runs, scale, "vllm")}
    assert (made["tokens_ratio"].low, made["tokens_ratio"].high) == (0.95, 0.99)
    assert made["core_ms_per_token_ours"].low == pytest.approx(0.30)
    assert made["core_ms_per_token_ours"].high == pytest.approx(0.35)
    assert made["core_ms_per_token_ours"].note.endswith("worker 0.57, api 0.25; raw 0.50")
    assert made["throughput_32_over_1"].value == 8
    assert "2 of 2 pairs" in made["tokens_ratio"].note


def test_disturbed_pairs_are_left_out_and_counted() -> None:
    quiet = [run("raw", 300), run("stack", 285), run("stack", 291), run("raw", 300)]
    disturbed = [run("raw", 100, elsewhere=9.0), run("stack", 285)]
    made = rows(QUICK, [*quiet, *disturbed], [run("stack", 30, 1), run("stack", 240, 32)], "vllm")
    assert (made[0].low, made[0].high) == (0.95, 0.97)
    assert "2 of 3 pairs" in made[0].note


def test_a_run_without_a_model_says_so_in_every_row() -> None:
    runs = [run("raw", 300), run("stack", 285)]
    made = rows(QUICK, runs, [run("stack", 30, 1), run("stack", 240, 32)], "deterministic")
    assert all("no model" in one.note for one in made)


def test_core_time_is_summed_over_an_arms_runs() -> None:
    assert core_ms_per_token([run("stack", 1, api=0.2), run("stack", 1, api=0.4)])["api"] == 0.3


def test_prompts_have_the_length_asked_for_and_repeat_by_seed(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    tokenizer = ModelTokenizer(tmp_path / "model")
    prompts = [chat_messages(tokenizer, 128, (1, number)) for number in range(5)]
    assert {tokenizer.count_chat({"messages": prompt}) for prompt in prompts} == {128}
    assert len({json.dumps(prompt) for prompt in prompts}) == 5
    assert chat_messages(tokenizer, 128, (1, 0)) == prompts[0]


def test_a_stream_gives_tokens_and_chunks() -> None:
    assert final_usage(STREAM) == (2, 1)


def test_a_task_that_failed_is_no_measurement() -> None:
    with pytest.raises(LoadError):
        final_usage(STREAM.replace(b"task.completed", b"task.failed"))


async def test_answers_are_read_however_the_bytes_are_cut() -> None:
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(STREAM), STREAM)
    whole = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk
    plain = b"HTTP/1.1 202 Accepted\r\nContent-Length: 4\r\n\r\nabcd"

    class Transport:
        def write(self, data: bytes) -> None:
            pass

        def is_closing(self) -> bool:
            return False

    for answer, status, body in ((whole, 200, chunk), (plain, 202, b"abcd")):
        for size in (1, 7, len(answer)):
            connection = Connection()
            connection.connection_made(Transport())  # type: ignore[arg-type]
            exchange = asyncio.ensure_future(connection.exchange(b"GET / HTTP/1.1\r\n\r\n"))
            await asyncio.sleep(0)
            for at in range(0, len(answer), size):
                connection.data_received(answer[at : at + size])
            assert await exchange == (status, body)


def test_cpu_time_goes_to_the_group_that_spent_it() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        meter = CpuMeter(lambda: {"busy": family(busy.pid), "idle": []})
        with pytest.raises(subprocess.TimeoutExpired):
            busy.wait(0.6)
        spent = meter.read()
    finally:
        busy.kill()
        busy.wait()
    assert spent["busy"] > 0.05 and spent["idle"] == 0


def test_a_machine_is_described_without_its_name() -> None:
    import socket

    about = json.dumps(describe())
    assert json.loads(about)["cores"] >= 1
    assert socket.gethostname() not in about and str(Path.home()) + "/" not in about


def test_the_whole_benchmark_runs_on_the_deterministic_engine(tmp_path: Path) -> None:
    result = tmp_path / "raw.json"
    words = ("bench", "raw", "--quick", "--engine", "deterministic", "--json", str(result))
    done = subprocess.run(
        [sys.executable, "-m", "cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(result.read_text())
    names = [row["name"] for row in written["rows"]]
    assert names == ["tokens_ratio", "core_ms_per_token_ours", "throughput_32_over_1"]
    assert all("no model" in row["note"] for row in written["rows"])
    assert written["arms"]["core_ms_per_token"]["stack"]["api"] > 0
