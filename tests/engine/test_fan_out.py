"""Several prompts in one completion, on the deterministic engine."""

import asyncio

import pytest

from tests.engine.conftest import Engines
from tests.support.engines import COMPLETIONS, Result, request, run
from workers.accounts import Account, now_us
from workers.engine import Engine, EngineDeadError, RequestRejectedError
from workers.fan_out import FanOut

PROMPTS = ["The wheel", "A flume", "Each gate"]


@pytest.fixture
async def fan_out(engines: Engines) -> FanOut:
    return FanOut(await engines.running("deterministic"))


async def alone(engine: Engine, prompt: object, **fields: object) -> Result:
    return await run(engine, request({"prompt": prompt, **fields}, url=COMPLETIONS, max_tokens=5))


async def test_choices_are_numbered_prompt_by_prompt_and_counts_are_summed(fan_out: FanOut) -> None:
    whole = await alone(fan_out, PROMPTS, n=2, temperature=1.0)
    each = [await alone(fan_out.engine, prompt, n=2, temperature=1.0) for prompt in PROMPTS]
    texts = [result.choices[index].text for result in each for index in (0, 1)]
    assert [whole.choices[index].text for index in range(6)] == texts
    assert whole.usage.prompt_tokens == sum(result.usage.prompt_tokens for result in each)
    assert whole.usage.output_tokens == 30


async def test_a_list_of_one_is_that_one(fan_out: FanOut) -> None:
    assert (await alone(fan_out, ["The wheel"])).only.text == (await alone(fan_out, "The wheel")).only.text
    assert (await alone(fan_out, [[70, 71]])).only.text == (await alone(fan_out, [70, 71])).only.text


async def test_engine_time_is_that_of_all_prompts(fan_out: FanOut) -> None:
    account, before = Account(), fan_out.accounts.read(now_us()).busy_us
    given = request({"prompt": PROMPTS}, url=COMPLETIONS, max_tokens=20, account=account)
    await run(fan_out, given)
    assert account.used_us == fan_out.accounts.read(now_us()).busy_us - before > 0


async def test_an_abort_stops_every_prompt(fan_out: FanOut) -> None:
    given = request({"prompt": PROMPTS, "ignore_eos": True}, url=COMPLETIONS, max_tokens=1000)
    result = Result()
    async for output in fan_out.generate(given):
        if not result.outputs:
            await fan_out.abort(given.request_id)
        result.add(output)
    assert result.outputs[-1].finished
    assert {choice.finish for choice in result.choices.values()} == {"abort"}
    health = await fan_out.check(5)
    assert (health.running, health.waiting) == (0, 0)


async def test_leaving_stops_every_prompt(fan_out: FanOut) -> None:
    given = request({"prompt": PROMPTS, "ignore_eos": True}, url=COMPLETIONS, max_tokens=1000)
    stream = fan_out.generate(given)
    await anext(stream)
    await stream.aclose()
    for _ in range(200):
        health = await fan_out.check(5)
        if not health.running and not health.waiting:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("still running")


async def test_one_prompt_that_is_refused_ends_the_request(fan_out: FanOut) -> None:
    with pytest.raises(RequestRejectedError):
        await alone(fan_out, ["The wheel", "x" * 5000])
    assert (await fan_out.check(5)).running == 0


async def test_a_dead_engine_is_one_error(fan_out: FanOut) -> None:
    stream = fan_out.generate(
        request({"prompt": PROMPTS, "ignore_eos": True}, url=COMPLETIONS, max_tokens=900)
    )
    await anext(stream)
    fan_out.engine.kill()  # type: ignore[attr-defined]
    with pytest.raises(EngineDeadError):
        async for _ in stream:
            pass
