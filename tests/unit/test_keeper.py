"""When an engine counts as dead."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from workers.deterministic import DeterministicEngine
from workers.deterministic_output import make_model
from workers.engine import EngineDeadError, EngineHealth, GenerateRequest
from workers.keeper import EngineKeeper


class SlowToAnswer(DeterministicEngine):
    """Misses a number of checks, as a busy engine does, and counts its starts."""

    missed = 0
    starts = 0

    async def start(self) -> None:
        self.starts += 1
        await super().start()

    async def check(self, timeout_s: float) -> EngineHealth:
        if self.missed > 0:
            self.missed -= 1
            raise TimeoutError
        return await super().check(timeout_s)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SlowToAnswer]:
    make_model(tmp_path / "model")
    engine = SlowToAnswer("m", tmp_path / "model", max_num_seqs=4, step_s=0.001)
    await engine.start()
    yield engine
    await engine.stop()


async def nothing_to_prove() -> None:
    """Any engine will do."""


@asynccontextmanager
async def kept(engine: SlowToAnswer, stuck_s: float) -> AsyncGenerator[list[str], None]:
    states: list[str] = []
    keeper = EngineKeeper(
        engine,
        check_s=0.02,
        stuck_s=stuck_s,
        on_state=lambda state, _: states.append(state),
        prove=nothing_to_prove,
    )
    keeping = asyncio.create_task(keeper.keep())
    try:
        yield states
    finally:
        keeping.cancel()


async def test_an_engine_that_answers_late_is_busy_not_dead(engine: SlowToAnswer) -> None:
    engine.missed = 5
    async with kept(engine, stuck_s=30) as states:
        await eventually(lambda: engine.missed == 0, what="five checks missed")
    assert (states, engine.starts) == ([], 1)


async def test_an_engine_that_never_answers_is_built_again(engine: SlowToAnswer) -> None:
    async with kept(engine, stuck_s=0.2) as states:
        engine.freeze()
        await eventually(lambda: states == ["engine_down", "ready"], what="rebuilt")
    assert engine.starts == 2
    assert (await engine.check(1)).running == 0


async def test_a_dead_engine_is_built_again_and_its_requests_hear_of_it(engine: SlowToAnswer) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    outputs = engine.generate(GenerateRequest("r", "/v1/chat/completions", body, 3000))
    await anext(outputs)
    async with kept(engine, stuck_s=30) as states:
        engine.kill()
        with pytest.raises(EngineDeadError):
            async for _ in outputs:
                pass
        await eventually(lambda: states == ["engine_down", "ready"], what="rebuilt")
