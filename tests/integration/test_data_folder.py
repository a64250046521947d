"""The data folder of a local stack: lock, secrets, and the note about a running stack."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cli.stack.folder import SECRETS, DataFolder, RunInfo, StackBusyError
from tests.support.children import idle
from tests.support.waiting import eventually, is_alive


def a_run(**pids: int) -> RunInfo:
    return RunInfo(
        pid=1,
        api_url="http://127.0.0.1:8000",
        api_key_file="key",
        flower_url="http://127.0.0.1:5555",
        flower_user="headrace",
        flower_password_file="password",
        model="m",
        engine="vllm",
        environment={"HEADRACE_KEY_PEPPER": "secret"},
        pids=dict(pids),
    )


def test_a_folder_in_use_is_refused_and_says_by_whom(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path), DataFolder(tmp_path)
    first.lock()
    first.write_run(a_run())
    with pytest.raises(StackBusyError, match=r"by process 1 \(API http://127.0.0.1:8000\)"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_secrets_are_made_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "new")
    folder.lock()
    values = {name: folder.secret(name) for name in SECRETS}
    assert len(set(values.values())) == len(SECRETS)
    assert all(len(value) >= 32 for value in values.values())
    assert {name: DataFolder(tmp_path / "new").secret(name) for name in SECRETS} == values
    assert stat.S_IMODE(folder.secrets.stat().st_mode) == 0o700
    assert {stat.S_IMODE(folder.secret_file(name).stat().st_mode) for name in SECRETS} == {0o600}
    folder.unlock()


def test_a_running_stack_is_known_by_its_lock_and_not_by_its_note(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert DataFolder(tmp_path).running() is None
    folder.lock()
    folder.write_run(a_run())
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600
    found = DataFolder(tmp_path).running()
    assert found is not None
    assert found.environment == {"HEADRACE_KEY_PEPPER": "secret"}
    folder.unlock()  # as a crash does: the note stays
    assert (tmp_path / "run.json").exists()
    assert DataFolder(tmp_path).running() is None


def test_the_note_of_a_killed_stack_is_not_believed_while_the_next_one_starts(tmp_path: Path) -> None:
    killed = _run(idle("killed", tmp_path).argv)
    folder = DataFolder(tmp_path)
    folder.lock()
    run = a_run()
    run.pid = killed.pid
    folder.write_run(run)
    assert DataFolder(tmp_path).running() is not None
    killed.kill()
    killed.wait()
    folder.unlock()
    folder.lock()  # as the next one does, before it removes the note
    try:
        assert DataFolder(tmp_path).running() is None
        with pytest.raises(StackBusyError, match=r"already runs on \S+$"):
            DataFolder(tmp_path).lock()
    finally:
        folder.unlock()


async def test_children_left_by_a_killed_supervisor_are_ended_and_no_others(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.lock()
    child, other = (_run(idle(name, tmp_path).argv) for name in ("child", "other"))
    try:
        run = a_run(child=child.pid, other=other.pid)
        folder.write_run(run)
        note = tmp_path / "run.json"
        began = run.pid_times["other"]
        note.write_text(
            note.read_text().replace(f'"other": {began}', f'"other": {began - 1}')
        )  # a used-again pid
        folder.end_leftovers(timeout_s=0.05)
        await eventually(lambda: not is_alive(child.pid))
        assert is_alive(other.pid)
        assert not note.exists()
    finally:
        for process in (child, other):
            process.kill()
            process.wait()
        folder.unlock()


def _run(argv: object) -> subprocess.Popen[bytes]:
    assert isinstance(argv, list)
    assert argv[0] == sys.executable
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL)
