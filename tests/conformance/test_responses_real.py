"""/v1/responses on vLLM, where what the model says is what is asked about."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.conformance.test_chat_real import LOOSE, TIME, TWO_CALLS, WEATHER
from tests.support.sdk import Sdk

pytestmark = pytest.mark.vllm
QUESTION = "What is the capital of France?"


def flat(tool: Any) -> Any:
    """A tool of a chat completion as a response has it."""
    return {"type": "function"} | tool["function"]


@pytest.mark.shows("responses-tools")
async def test_two_calls_are_items_plain_and_streamed_and_the_conversation_goes_on(real_sdk: Sdk) -> None:
    fields: dict[str, Any] = {
        "model": real_sdk.model,
        "input": QUESTION,
        "tools": [flat(LOOSE), flat(TIME)],
        "temperature": 0,
        "max_output_tokens": 120,
        "extra_body": {"structured_outputs": {"choice": [TWO_CALLS]}},
    }
    answer = await real_sdk.do("responses.create", **fields)
    expected = [("get_weather", {"city": "Paris"}), ("get_time", {})]
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == expected
    assert answer.status == "completed"
    events = await real_sdk.all("responses.create", stream=True, **fields)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(call.name, json.loads(call.arguments)) for call in done] == expected
    assert [item.to_dict() for item in events[-1].response.output] == [item.to_dict() for item in done]
    arguments = [event for event in events if event.type == "response.function_call_arguments.delta"]
    for place, call in enumerate(done):
        told = "".join(event.delta for event in arguments if event.output_index == place)
        assert told == call.arguments
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "blue sky"} for call in calls
    ]
    for more in (
        {"previous_response_id": answer.id, "input": results},
        {"input": [{"role": "user", "content": QUESTION}, *answer.output, *results]},  # or all sent again
    ):
        last = await real_sdk.do(
            "responses.create",
            model=real_sdk.model,
            tools=[flat(LOOSE)],
            tool_choice="none",
            temperature=0,
            max_output_tokens=40,
            **more,
        )
        assert last.output_text


@pytest.mark.shows("responses-tools")
async def test_a_call_that_is_required_is_made(real_sdk: Sdk) -> None:
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        answer = await real_sdk.do(
            "responses.create",
            model=real_sdk.model,
            input=QUESTION,
            tools=[flat(WEATHER)],
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=0,
            max_output_tokens=200,
        )
        (call,) = answer.output
        assert (call.type, call.name, set(json.loads(call.arguments))) == (
            "function_call",
            "get_weather",
            {"city"},
        )


class Capital(BaseModel):
    city: str
    large: bool


@pytest.mark.shows("responses-parsed")
async def test_parse_gets_the_object_that_the_schema_describes(real_sdk: Sdk) -> None:
    answer = await real_sdk.do(
        "responses.parse",
        model=real_sdk.model,
        input=QUESTION,
        text_format=Capital,
        temperature=0,
        max_output_tokens=200,
    )
    assert isinstance(answer.output_parsed, Capital)
