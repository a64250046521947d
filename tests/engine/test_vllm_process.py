"""The vLLM engine's processes: their death is told apart and survived, and they never outlive their owner."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.conftest import Engines
from tests.support.demo_model import demo_model
from tests.support.engines import Result, chat, request, run
from tests.support.waiting import eventually, is_alive
from workers.engine import EngineDeadError
from workers.vllm_process import intel_openmp, prepare_environment

pytestmark = pytest.mark.vllm


@pytest.mark.full
async def test_a_killed_core_fails_the_running_requests_and_the_engine_starts_again(engines: Engines) -> None:
    from workers.vllm_engine import VLLMEngine

    engine = await engines.running("vllm")
    assert isinstance(engine, VLLMEngine)
    pids = engine.pids()
    assert len(pids) >= 1
    seen = Result()
    with pytest.raises(EngineDeadError):
        async for output in engine.generate(request(chat(ignore_eos=True), max_tokens=900)):
            seen.add(output)
            if len(seen.outputs) == 3:
                os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(EngineDeadError):
        await engine.check(timeout_s=5)
    with pytest.raises(EngineDeadError):
        await run(engine, request(chat()))
    await engine.start()
    assert not set(pids) & set(engine.pids())
    assert not [pid for pid in pids if is_alive(pid)]
    assert "Paris" in (await run(engine, request(chat()))).only.text


@pytest.mark.full
async def test_stopping_ends_the_running_requests_and_every_process(engines: Engines) -> None:
    from workers.vllm_engine import VLLMEngine

    engine = await engines.running("vllm")
    assert isinstance(engine, VLLMEngine)
    pids = engine.pids()
    task = asyncio.create_task(run(engine, request(chat(ignore_eos=True), max_tokens=900)))
    while not (await engine.check(timeout_s=30)).running:
        assert not task.done()
    await engine.stop()
    with pytest.raises(EngineDeadError):
        await task
    assert pids
    assert not [pid for pid in pids if is_alive(pid)]
    await engine.stop()  # once more is no error
    with pytest.raises(EngineDeadError):
        await run(engine, request(chat()))


@pytest.mark.full
@pytest.mark.parametrize("guard", ["kernel and thread", "thread"])
async def test_no_engine_process_outlives_a_killed_parent(engines: Engines, guard: str) -> None:
    if "vllm" in engines.made:
        await engines.made["vllm"].stop()  # two engines at once would only be slow
    environment = dict(os.environ)
    if guard == "thread":
        environment["HEADRACE_ENGINE_PARENT_DEATH_SIGNAL"] = ""
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.engine_process", str(demo_model())),
        stdout=subprocess.PIPE,
        env=environment,
    )
    try:
        assert parent.stdout is not None
        line = ""
        async with asyncio.timeout(300):
            while not line.startswith("{"):
                raw = await parent.stdout.readline()
                assert raw, "the engine did not start"
                line = raw.decode()
        told = json.loads(line)
        assert "Paris" in told["answer"]
        assert all(is_alive(pid) for pid in told["pids"])
    finally:
        parent.kill()
        await parent.wait()
    await eventually(
        lambda: not [pid for pid in told["pids"] if is_alive(pid)], within_s=10, what="the engine ends"
    )


def test_what_the_operator_set_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"VLLM_CPU_OMP_THREADS_BIND": "1"})
    prepare_environment(on_cpu=True)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"


def test_engines_on_cpu_get_intels_openmp_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(os, "environ", {})
    prepare_environment(on_cpu=True)
    assert "LD_PRELOAD" not in os.environ
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    prepare_environment(on_cpu=False)
    assert "LD_PRELOAD" not in os.environ
    prepare_environment(on_cpu=True)
    assert os.environ["LD_PRELOAD"] == str(library)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "with a space"))
    (tmp_path / "with a space" / "lib").mkdir(parents=True)
    (tmp_path / "with a space" / "lib" / "libiomp5.so").touch()
    assert intel_openmp() is None  # it can't be said in LD_PRELOAD
    monkeypatch.setattr(os, "environ", {"LD_PRELOAD": "of the operator"})
    prepare_environment(on_cpu=True)
    assert os.environ["LD_PRELOAD"] == "of the operator"


@pytest.mark.skipif(intel_openmp() is None, reason="not installed: vllm-cpu brings it along on x86 only")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="the operator preloads something else")
async def test_an_engine_computes_on_intels_openmp(engines: Engines) -> None:
    from workers.vllm_engine import VLLMEngine

    engine = await engines.running("vllm")
    assert isinstance(engine, VLLMEngine)
    assert "Paris" in (await run(engine, request(chat()))).only.text
    assert any("libiomp5.so" in _mapped(pid) for pid in engine.pids())


def _mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()
