"""Tool calls and reasoning, read by vLLM's parsers out of text that a script says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.chat_template import ModelTokenizer
from tests.support.demo_model import demo_model
from tests.support.engines import COMPLETIONS, Result, chat, request, run, vllm_reader
from workers.engine import Delta, EngineUsage, Output

pytestmark = pytest.mark.vllm
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Pa\\"ris 漢"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": [1, 2]}}\n</tool_call>'
Read = Callable[..., Result]


@pytest.fixture(scope="module")
def thinking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with two of its unused tokens spelled as reasoning models spell theirs."""
    folder = tmp_path_factory.mktemp("thinking")
    for file in demo_model().iterdir():
        if file.suffix in (".json", ".jinja"):
            text = file.read_text()
            text = text.replace("<repo_name>", "<think>").replace("<file_sep>", "</think>")
            (folder / file.name).write_text(text)
        else:
            (folder / file.name).symlink_to(file)
    return folder


@pytest.fixture(scope="module")
def read(thinking_model: Path) -> Read:
    """Read a text, some tokens at a time, as the answer to a chat with these fields."""
    from workers.vllm_params import _chat
    from workers.vllm_parsing import ParserNames, Parsers, reasoning_tokens

    engine = vllm_reader(thinking_model)
    tokenizer = ModelTokenizer(thinking_model)

    def read(
        text: str,
        *,
        tool: str | None = "hermes",
        reasoning: str | None = None,
        step: int = 1,
        finish: str = "stop",
        before: str = "",  # the end of the prompt
        **fields: Any,
    ) -> Result:
        parsers = Parsers(engine, ParserNames(tool, reasoning))
        wire = _chat({"messages": [{"role": "user", "content": "x"}], **fields})
        reading = parsers.of(wire, {})
        assert reading is not None
        prompt = [1, *tokenizer.encode(before)]
        reader = reading.readers(prompt)[0]
        ids, result, said = tokenizer.encode(text), Result(), ""
        for at in range(0, len(ids), step):
            now = tokenizer.decode(ids[: at + step], skip_special_tokens=False)
            if now.endswith("\ufffd"):
                now = said  # half a character waits, as in the engine
            last = at + step >= len(ids)
            delta = Delta(0, now[len(said) :], ids[at : at + step], None, finish if last else None)
            result.add(Output([reader.read(delta)], EngineUsage(1, 0, at)))
            said = now
        counts = EngineUsage(len(prompt), 0, len(ids), reasoning_tokens=reasoning_tokens([reader]))
        result.outputs.append(Output([], counts, True))
        return result

    return read


def arguments(result: Result) -> list[Any]:
    return [json.loads(call["function"]["arguments"]) for call in result.only.calls]


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_two_calls_are_told_apart_and_each_is_named_once(read: Read, step: int) -> None:
    result = read(f"Let me look.{CALL}\n{OTHER}", tools=[TOOL], step=step)
    assert arguments(result) == [{"city": 'Pa"ris 漢'}, {"city": "Rome", "days": [1, 2]}]
    assert [call["index"] for call in result.only.calls] == [0, 1]
    assert {call["function"]["name"] for call in result.only.calls} == {"weather"}
    assert len({call["id"] for call in result.only.calls}) == 2
    assert result.only.text.strip() == "Let me look."
    assert result.only.finish == "tool_calls"


def test_without_parallel_calls_the_first_is_the_only_one(read: Read) -> None:
    result = read(f"{CALL}\n{OTHER}", tools=[TOOL], parallel_tool_calls=False)
    assert arguments(result) == [{"city": 'Pa"ris 漢'}]


def test_an_answer_without_a_call_is_text_to_the_last_letter(read: Read) -> None:
    result = read("If x <tool then y.", tools=[TOOL])
    assert (result.only.text, result.only.calls, result.only.finish) == ("If x <tool then y.", [], "stop")


def test_a_call_that_is_cut_off_says_so(read: Read) -> None:
    result = read(CALL[:-30], tools=[TOOL], finish="length")
    assert result.only.finish == "length"
    assert len(result.only.calls) == 1


@pytest.mark.parametrize(
    "step", [1, 1000]
)  # with two tokens a step vLLM's own parser leaves the first mark in
def test_reasoning_is_taken_out_of_the_answer(read: Read, step: int) -> None:
    text = "<think>Two and two.</think>It is four."
    result = read(text, tool=None, reasoning="deepseek_r1", step=step)
    assert result.only.reasoning.strip() == "Two and two."
    assert result.only.text.strip() == "It is four."


@pytest.mark.parametrize("before", ["", "Say it.<think>"])
def test_tokens_of_reasoning_are_counted_wherever_it_began(
    read: Read, thinking_model: Path, before: str
) -> None:
    thought = "I must look it up, and then say it."
    text = f"{thought}</think>It is four."
    result = read(text if before else f"<think>{text}", tool=None, reasoning="deepseek_r1", before=before)
    assert result.only.reasoning.strip() == thought
    assert result.usage.reasoning_tokens == len(ModelTokenizer(thinking_model).encode(thought))


def test_tokens_of_reasoning_that_nobody_can_count_are_not_made_up(read: Read) -> None:
    unmarked = read("Hm.</think>Four.", tool=None, reasoning="deepseek_r1")
    assert (unmarked.only.reasoning.strip(), unmarked.usage.reasoning_tokens) == ("Hm.", None)
    assert read("Four.", tools=[TOOL]).usage.reasoning_tokens is None, "nothing reads reasoning here"


def test_a_tool_is_called_after_reasoning(read: Read) -> None:
    result = read(f"<think>I must look.</think>{CALL}", reasoning="deepseek_r1", tools=[TOOL])
    assert result.only.reasoning.strip() == "I must look."
    assert arguments(result) == [{"city": 'Pa"ris 漢'}]
    assert result.only.finish == "tool_calls"


def test_a_parser_that_does_not_exist_is_said_at_the_start(read: Read) -> None:
    with pytest.raises(TypeError, match="no_such_parser"):
        read("x", tool="no_such_parser", tools=[TOOL])


@pytest.mark.full
async def test_on_an_engine_reasoning_is_apart_and_a_form_begins_where_it_ends(thinking_model: Path) -> None:
    from workers.vllm_engine import VLLMEngine
    from workers.vllm_parsing import ParserNames

    engine = VLLMEngine(
        "thinker",
        thinking_model,
        max_num_seqs=4,
        max_model_len=1024,
        kv_cache_bytes=1 << 28,
        parsers=ParserNames("hermes", "deepseek_r1"),
    )
    await engine.start()
    try:
        assert engine.info.reads_reasoning
        thought = (
            await run(engine, request(chat(), max_tokens=12))
        ).only  # it never says that it has thought
        assert thought.reasoning and not thought.text
        end = ModelTokenizer(thinking_model).token_id("</think>")
        form = {"structured_outputs": {"choice": ["Paris"]}, "logit_bias": {str(end): 100}}
        formed = (await run(engine, request(chat(**form), max_tokens=12))).only
        assert (formed.text, formed.reasoning, formed.finish) == ("Paris", "", "stop")
        text = await run(engine, request({"prompt": "x", "temperature": 0}, url=COMPLETIONS, max_tokens=5))
        assert text.only.text and not text.only.reasoning
    finally:
        await engine.stop()
