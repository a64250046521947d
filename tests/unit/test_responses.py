"""Responses without stores: items and messages, and a task's events folded into a response's."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from schemas.errors import RequestError
from schemas.response_chat import answered, messages_of
from schemas.response_items import output_items, read_items
from schemas.response_stream import ResponseEvents, Said

ID = "resp_01"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Told:
    """A fold and what it told, read as the official client reads it."""

    def __init__(self) -> None:
        self.fold = ResponseEvents(ID)
        self.frames: list[bytes] = []
        response = {"id": ID, "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []}
        self.response = response | {"parallel_tool_calls": True, "tool_choice": "auto", "status": "queued"}
        self.take(self.fold.opened(self.response))
        self.take(self.fold.started(self.response))

    def take(self, said: Iterable[Said]) -> None:
        self.frames += self.fold.numbered(iter(said), -1)

    def delta(self, **message: Any) -> None:
        self.take(self.fold.delta({"index": 0, "delta": message, "logprobs": None, "finish_reason": None}))

    def end(self, message: dict[str, Any], kind: str = "response.completed") -> None:
        output = output_items(message, None, ID, "completed")
        self.take(self.fold.ended(kind, self.response | {"status": "completed", "output": output}))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [orjson.loads(frame.split(b"data: ", 1)[1]) for frame in self.frames]

    def kinds(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events][3:]

    def accumulate(self) -> Any:
        """What the official client's helper makes of it. Raises: whatever it does not accept."""
        state: Any = ResponseStreamState(input_tools=[], text_format=omit)
        for event in self.events:
            state.handle_event(EVENT.validate_python(event))
        return state._completed_response


def call(index: int, arguments: str, **named: str) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": named["name"]} if named else {})
    return {"index": index, "function": function} | ({"id": named["id"], "type": "function"} if named else {})


def test_thought_text_and_calls_are_items_in_the_order_of_the_answer() -> None:
    told = Told()
    told.delta(reasoning="Hm")
    told.delta(reasoning="m.")
    told.delta(content="Let me ")
    told.delta(content="see.")
    told.delta(tool_calls=[call(0, "", id="call_a", name="look")])
    told.delta(tool_calls=[call(0, '{"at":1}')])
    told.delta(tool_calls=[call(1, "{}", id="call_b", name="listen")])
    calls = [
        {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "listen", "arguments": "{}"}},
    ]
    told.end({"content": "Let me see.", "reasoning": "Hmm.", "tool_calls": calls})
    assert [event["sequence_number"] for event in told.events] == list(range(len(told.events)))
    done = [event["item"] for event in told.events if event["type"] == "response.output_item.done"]
    assert done == told.events[-1]["response"]["output"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call"]
    final = told.accumulate()
    assert final.output_text == "Let me see."
    assert [item.call_id for item in final.output[2:]] == ["call_a", "call_b"]


def test_a_fold_over_the_same_events_tells_the_same_whatever_the_cursor() -> None:
    told = Told()
    told.delta(content="a")
    told.take(told.fold.restarted())
    told.delta(content="b")
    told.end({"content": "b"})
    for cursor in range(-1, len(told.frames)):
        fold, rest = ResponseEvents(ID), []
        rest += fold.numbered(fold.opened(told.response), cursor)
        rest += fold.numbered(fold.started(told.response), cursor)
        rest += fold.numbered(fold.started(told.response), cursor)  # another attempt says so again
        for text in ("a", None, "b"):
            choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
            rest += fold.numbered(fold.delta(choice) if text else fold.restarted(), cursor)
        output = output_items({"content": "b"}, None, ID, "completed")
        end = told.response | {"status": "completed", "output": output}
        rest += fold.numbered(fold.ended("response.completed", end), cursor)
        assert rest == told.frames[cursor + 1 :]


def test_what_is_begun_anew_is_put_aside_as_incomplete_and_the_client_gets_the_new_text() -> None:
    told = Told()
    told.delta(content="wrong")
    told.take(told.fold.restarted())
    told.delta(content="right")
    told.end({"content": "right"})
    done = [event["item"] for event in told.events if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in done] == ["incomplete", "completed"]
    assert done[0]["id"] != done[1]["id"] == told.events[-1]["response"]["output"][0]["id"]
    assert told.accumulate().output_text == "right"


@pytest.mark.parametrize("sent", ["", "It is "])
def test_text_whose_event_was_lost_is_told_at_the_end(sent: str) -> None:
    told = Told()
    if sent:
        told.delta(content=sent)
    told.end({"content": "It is late."})
    texts = [event["delta"] for event in told.events if event["type"] == "response.output_text.delta"]
    assert "".join(texts) == "It is late."
    assert told.kinds()[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert told.accumulate().output_text == "It is late."


def test_a_cancelled_response_leaves_its_item_incomplete() -> None:
    told = Told()
    told.delta(content="It is ")
    told.end({"content": "It is "}, "response.cancelled")
    done = [event["item"]["status"] for event in told.events if event["type"] == "response.output_item.done"]
    assert (done, told.kinds()[-1]) == (["incomplete"], "cancelled")


def test_an_answer_sent_back_as_it_came_becomes_the_same_turn() -> None:
    calls = [{"id": "call_a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    message = {"content": "Let me see.", "reasoning": "Hm", "tool_calls": calls}
    items = read_items(
        [
            {"role": "user", "content": "What is there?"},
            *output_items(message, None, ID, "completed"),
            {"type": "function_call_output", "call_id": "call_a", "output": "a weir"},
        ],
        ID,
    )
    assert messages_of(items) == [
        {"role": "user", "content": "What is there?"},
        answered(message),
        {"role": "tool", "tool_call_id": "call_a", "content": "a weir"},
    ]
    assert len({item["id"] for item in items}) == len(items)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "message", "role": "user"}, "input[0].content"),
        ({"role": "king", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "output_text", "text": "x"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"type": "function_call", "call_id": "a", "name": "b c", "arguments": ""}, "input[0].name"),
        ({"type": "reasoning", "encrypted_content": "x"}, "input[0].encrypted_content"),
        ({"type": ["message"]}, "input[0].type"),
        ({}, "input[0].type"),
    ],
)
def test_an_item_that_can_not_be_read_is_named(item: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        read_items([item], ID)
    assert (error.value.status, error.value.param) == (400, param)
