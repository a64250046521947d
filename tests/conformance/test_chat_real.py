"""POST /v1/chat/completions on vLLM, where what the model says is what is asked about."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.conformance.test_chat import CREATE, texts_of
from tests.support.sdk import Sdk

pytestmark = pytest.mark.vllm
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
# strict tools may be called whatever other form is asked for; of this one the form alone decides
LOOSE: Any = {"type": "function", "function": WEATHER["function"] | {"strict": None}}
TIME: Any = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}
# What a larger model would say by itself, this one is made to say.
TWO_CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)


class Capital(BaseModel):
    city: str
    large: bool


def calls_of(chunks: list[Any]) -> list[dict[str, Any]]:
    """The tool calls that a stream's deltas add up to, as strictly as the strictest client."""
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for choice in chunk.choices:
            for item in choice.delta.tool_calls or ():
                if item.index == len(calls):
                    assert item.id and item.type == "function" and item.function.name
                    calls.append({"id": item.id, "name": item.function.name, "arguments": ""})
                else:
                    assert item.index == len(calls) - 1
                    assert (item.id, item.type, item.function.name) == (None, None, None)
                calls[item.index]["arguments"] += item.function.arguments or ""
    return calls


@pytest.mark.shows("chat-stream-equals-plain")
async def test_the_stream_of_a_real_model_equals_its_plain_answer(real_sdk: Sdk) -> None:
    fields: dict[str, Any] = {"model": real_sdk.model, "messages": QUESTION, "temperature": 0.8, "seed": 11}
    plain = await real_sdk.do(CREATE, max_tokens=24, **fields)
    chunks = await real_sdk.all(CREATE, max_tokens=24, stream=True, **fields)
    assert texts_of(chunks)[0] == plain.choices[0].message.content


@pytest.mark.shows("chat-tool-calls", "chat-tool-deltas")
async def test_two_tool_calls_come_exact_plain_and_streamed(real_sdk: Sdk) -> None:
    fields: dict[str, Any] = {
        "model": real_sdk.model,
        "messages": QUESTION,
        "tools": [LOOSE, TIME],
        "temperature": 0,
        "max_tokens": 120,
        "extra_body": {"structured_outputs": {"choice": [TWO_CALLS]}},
    }
    expected = [("get_weather", {"city": "Paris"}), ("get_time", {})]
    answer = await real_sdk.do(CREATE, **fields)
    message = answer.choices[0].message
    assert [
        (call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls
    ] == expected
    assert len({call.id for call in message.tool_calls}) == 2
    assert (message.content, answer.choices[0].finish_reason) == (None, "tool_calls")
    chunks = await real_sdk.all(CREATE, stream=True, **fields)
    calls = calls_of(chunks)
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == expected
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.shows("chat-tool-choice")
async def test_a_call_that_is_required_is_made(real_sdk: Sdk) -> None:
    fields: dict[str, Any] = {
        "model": real_sdk.model,
        "messages": QUESTION,
        "tools": [WEATHER],
        "temperature": 0,
        "max_tokens": 200,
    }
    required = await real_sdk.do(CREATE, tool_choice="required", parallel_tool_calls=False, **fields)
    (call,) = required.choices[0].message.tool_calls
    assert (call.function.name, required.choices[0].finish_reason) == ("get_weather", "tool_calls")
    assert set(json.loads(call.function.arguments)) == {"city"}
    named = {"type": "function", "function": {"name": "get_weather"}}
    chosen = await real_sdk.do(CREATE, tool_choice=named, parallel_tool_calls=False, **fields)
    assert chosen.choices[0].message.tool_calls[0].function.name == "get_weather"
    refrained = await real_sdk.do(CREATE, tool_choice="none", **fields)
    assert refrained.choices[0].message.tool_calls is None
    assert "Paris" in refrained.choices[0].message.content


@pytest.mark.shows("chat-tool-round-trip")
async def test_a_conversation_goes_on_after_a_tools_result(real_sdk: Sdk) -> None:
    fields: dict[str, Any] = {"model": real_sdk.model, "tools": [WEATHER], "temperature": 0, "max_tokens": 60}
    first = await real_sdk.do(
        CREATE, messages=QUESTION, tool_choice="required", parallel_tool_calls=False, **fields
    )
    message = first.choices[0].message
    assert message.content is None
    answered = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": '{"sky": "blue"}'}
    for turn in (message, message.model_dump()):  # as the object, and with every field, null or not
        last = await real_sdk.do(CREATE, messages=[*QUESTION, turn, answered], tool_choice="none", **fields)
        assert last.choices[0].message.content


@pytest.mark.shows("chat-parse")
async def test_parse_gets_the_object_that_the_schema_describes(real_sdk: Sdk) -> None:
    answer = await real_sdk.do(
        "chat.completions.parse",
        model=real_sdk.model,
        messages=QUESTION,
        response_format=Capital,
        temperature=0,
        max_tokens=80,
    )
    assert isinstance(answer.choices[0].message.parsed, Capital)
    tools = await real_sdk.do(
        "chat.completions.parse",
        model=real_sdk.model,
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=80,
    )
    assert set(tools.choices[0].message.tool_calls[0].function.parsed_arguments) == {"city"}


@pytest.mark.shows("chat-json-object")
async def test_json_object_gives_json(real_sdk: Sdk) -> None:
    # a small model may go on for ever inside of it: what is said so far is JSON's beginning
    answer = await real_sdk.do(
        CREATE,
        model=real_sdk.model,
        messages=[{"role": "user", "content": "Answer with the JSON object of a city and its country."}],
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=120,
    )
    text = answer.choices[0].message.content
    assert text.lstrip().startswith("{")
    assert answer.choices[0].finish_reason == "length" or isinstance(json.loads(text), dict)


@pytest.mark.shows("chat-structured-outputs")
@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        ({"choice": ["Paris", "Rome"]}, {"Paris", "Rome"}),
        ({"regex": "(yes|no)"}, {"yes", "no"}),
        ({"grammar": 'root ::= "river" | "lake"'}, {"river", "lake"}),
        ({"json": {"enum": [7, 8]}}, {"7", "8"}),
    ],
)
async def test_structured_outputs_constrain_the_answer(
    real_sdk: Sdk, constraint: dict[str, Any], allowed: set[str]
) -> None:
    extra = {"structured_outputs": constraint}
    fields: dict[str, Any] = {"model": real_sdk.model, "messages": QUESTION, "max_tokens": 12}
    answer = await real_sdk.do(CREATE, extra_body=extra, **fields)
    assert answer.choices[0].message.content in allowed
    text = await real_sdk.do(
        "completions.create", model=real_sdk.model, prompt="Is it so?", max_tokens=12, extra_body=extra
    )
    assert text.choices[0].text in allowed
