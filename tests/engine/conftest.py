"""Both engines, started when a test first needs them and left running for the next."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from runtime.chat_template import ModelTokenizer
from tests.support.demo_model import demo_model
from tests.support.waiting import is_alive
from workers.deterministic import DeterministicEngine
from workers.deterministic_output import make_model
from workers.engine import Engine, EngineDeadError

MAX_MODEL_LEN = 1024
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


class Engines:
    """The session's engines by name."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._folders: dict[str, Path] = {}
        self.made: dict[str, Engine] = {}

    def folder(self, name: str) -> Path:
        if name not in self._folders:
            if name == "vllm":
                self._folders[name] = demo_model()
            else:
                make_model(self._scratch / "model")
                self._folders[name] = self._scratch / "model"
        return self._folders[name]

    async def running(self, name: str) -> Engine:
        """That engine, started again if a test ended it."""
        if name not in self.made:
            self.made[name] = self._make(name)
        engine = self.made[name]
        try:
            await engine.check(timeout_s=30)
        except (EngineDeadError, TimeoutError):
            await engine.start()
        return engine

    def _make(self, name: str) -> Engine:
        if name == "deterministic":
            return DeterministicEngine(
                "words", self.folder(name), max_num_seqs=8, max_model_len=MAX_MODEL_LEN, step_s=0.001
            )
        from workers.vllm_engine import VLLMEngine
        from workers.vllm_parsing import ParserNames

        return VLLMEngine(
            "demo",
            self.folder(name),
            max_num_seqs=8,
            max_model_len=MAX_MODEL_LEN,
            kv_cache_bytes=1 << 28,
            engine_args={"block_size": 32},
            parsers=ParserNames(tool="hermes"),
        )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engines]:
    """All of them; at the end none may leave a process behind."""
    made = Engines(tmp_path_factory.mktemp("engines"))
    yield made
    for engine in made.made.values():
        pids = getattr(engine, "pids", list)()
        await engine.stop()
        assert not [pid for pid in pids if is_alive(pid)]


@pytest.fixture(params=["deterministic", pytest.param("vllm", marks=pytest.mark.vllm)])
def kind(request: pytest.FixtureRequest) -> str:
    """Which implementation a conformance test runs on."""
    name: str = request.param
    return name


@pytest_asyncio.fixture(loop_scope="session")
async def engine(engines: Engines, kind: str) -> Engine:
    """A running engine of that kind."""
    return await engines.running(kind)


@pytest.fixture
def tokenizer(engines: Engines, kind: str) -> ModelTokenizer:
    """The tokenizer of its model."""
    return ModelTokenizer(engines.folder(kind))
