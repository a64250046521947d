"""The supervisor, with small children."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cli.stack.ports import free_port
from cli.stack.probes import http
from cli.stack.process import StackError
from cli.stack.supervisor import Backoff, Child, Supervisor
from tests.support.children import idle, said, script, stubborn
from tests.support.owners import killed_owner
from tests.support.waiting import eventually, is_alive


async def test_children_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    supervisor = Supervisor()
    for name in ("first", "second", "third"):
        await supervisor.start(Child(idle(name, tmp_path), said("ready")))
    pids = supervisor.pids
    assert list(pids) == ["first", "second", "third"]
    await supervisor.stop()
    stopped_at = {name: _stopped_at(tmp_path / f"{name}.log") for name in pids}
    assert sorted(pids, key=stopped_at.__getitem__) == ["third", "second", "first"]
    assert not any(map(is_alive, pids.values()))


async def test_an_ended_child_is_started_again_after_a_growing_pause(tmp_path: Path) -> None:
    notes: list[str] = []
    supervisor = Supervisor(notes.append, backoff=Backoff(first_s=0.05, limit_s=0.2))
    await supervisor.start(Child(idle("child", tmp_path), said("ready")))
    for pause in ("0.1", "0.1", "0.2"):  # 0.05 is written 0.1
        before = supervisor.pids["child"]
        os.kill(before, signal.SIGKILL)
        await eventually(lambda before=before: supervisor.pids.get("child", before) != before)  # type: ignore[misc]
        assert "was ended by SIGKILL" in notes[-1]
        assert f"again in {pause} s" in notes[-1]
    await supervisor.stop()


async def test_a_child_that_ends_before_it_is_ready_is_an_error_with_its_log(tmp_path: Path) -> None:
    supervisor = Supervisor()
    with pytest.raises(StackError, match=r"(?s)broken ended with code 3 .*no such setting"):
        await supervisor.start(
            Child(script("broken", tmp_path, "print('no such setting'); raise SystemExit(3)"), said("ready"))
        )
    await supervisor.stop()


async def test_another_process_that_answers_at_a_childs_port_does_not_make_it_ready(tmp_path: Path) -> None:
    """Two stacks that start at once may both have found a port free."""
    port = free_port()
    answering = (
        "from http.server import HTTPServer, SimpleHTTPRequestHandler as Answer;"
        f"HTTPServer(('127.0.0.1', {port}), Answer).serve_forever()"
    )
    probe = http(f"http://127.0.0.1:{port}/", 200)
    others, ours = Supervisor(), Supervisor()
    await others.start(Child(script("others", tmp_path, answering), probe))
    with pytest.raises(StackError, match="idle not ready after"):
        await ours.start(Child(idle("idle", tmp_path), probe, ready_timeout_s=0.3))
    await ours.stop()
    await others.stop()


async def test_a_child_that_is_never_ready_is_an_error_and_is_stopped(tmp_path: Path) -> None:
    supervisor = Supervisor()
    with pytest.raises(StackError, match="slow not ready after"):
        await supervisor.start(Child(idle("slow", tmp_path), said("something else"), ready_timeout_s=0.1))
    pid = supervisor.pids["slow"]
    await supervisor.stop()
    assert not is_alive(pid)


async def test_a_child_that_ignores_the_stop_is_killed_with_its_own_children(tmp_path: Path) -> None:
    notes: list[str] = []
    supervisor = Supervisor(notes.append)
    await supervisor.start(Child(stubborn("stubborn", tmp_path), said("ready")))
    grandchild = _number_after("child", tmp_path / "stubborn.log")
    pids = [supervisor.pids["stubborn"], grandchild]
    assert all(map(is_alive, pids))
    await supervisor.stop()
    assert notes == ["stubborn did not stop in time: killed"]
    await eventually(lambda: not any(map(is_alive, pids)))


async def test_what_a_dead_child_leaves_is_killed_before_its_successor_starts(tmp_path: Path) -> None:
    supervisor = Supervisor(backoff=Backoff(first_s=0.01))
    await supervisor.start(Child(stubborn("stubborn", tmp_path), said("ready")))
    pid, grandchild = supervisor.pids["stubborn"], _number_after("child", tmp_path / "stubborn.log")
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: supervisor.pids.get("stubborn", pid) != pid)
    await eventually(lambda: not is_alive(grandchild), within_s=2)
    await supervisor.stop()


async def test_a_hurried_stop_does_not_wait_for_the_time_limit(tmp_path: Path) -> None:
    supervisor = Supervisor()
    patient = replace(stubborn("stubborn", tmp_path), stop_timeout_s=600)
    await supervisor.start(Child(patient, said("ready")))
    supervisor.hurry()
    await asyncio.wait_for(supervisor.stop(), timeout=10)


async def test_a_program_run_once_reports_its_failure_and_dies_when_cancelled(tmp_path: Path) -> None:
    supervisor = Supervisor()
    await supervisor.run(script("fine", tmp_path, ""))
    with pytest.raises(StackError, match="bad ended with code 1"):
        await supervisor.run(script("bad", tmp_path, "raise SystemExit('no')"))
    with pytest.raises(StackError, match="can't be run"):
        await supervisor.run(replace(idle("missing", tmp_path), argv=["/nonexistent"]))
    running = asyncio.create_task(supervisor.run(stubborn("endless", tmp_path)))
    log = tmp_path / "endless.log"
    await eventually(lambda: log.exists() and b"ready" in log.read_bytes())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: not is_alive(_number_after("child", log)))


async def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    pids = (await killed_owner("supervisor", tmp_path)).pids
    assert list(pids) == ["first", "second"]
    await eventually(lambda: not any(map(is_alive, pids.values())))


def _stopped_at(log: Path) -> float:
    return float(log.read_text().split()[-1])


def _number_after(word: str, log: Path) -> int:
    words = log.read_text().split()
    return int(words[words.index(word) + 1])
