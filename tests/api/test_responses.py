"""/v1/responses, by the official client: waited for, streamed, in the background, resumed, chained, deleted."""

import json
from typing import Any

import httpx
import pytest
from openai import (
    AsyncOpenAI,
    BadRequestError,
    NotFoundError,
    OpenAI,
    UnprocessableEntityError,
)

from tests.support.stacks import SharedStack as Stack
from tests.support.waiting import eventually_async

ENDED = {"completed", "failed", "cancelled", "incomplete"}


async def ended(openai: AsyncOpenAI, response_id: str) -> Any:
    async def is_ended() -> bool:
        return (await openai.responses.retrieve(response_id)).status in ENDED

    await eventually_async(is_ended, 15.0, f"{response_id} ended")
    return await openai.responses.retrieve(response_id)


def test_a_response_is_waited_for(openai_sync: OpenAI, stack: Stack) -> None:
    response = openai_sync.responses.create(
        model=stack.model, input="Tell me about weirs.", metadata={"job": "7"}, temperature=0.5
    )
    assert response.status == "completed"
    assert response.output_text
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.metadata, response.temperature, response.tools) == ({"job": "7"}, 0.5, [])
    again = openai_sync.responses.retrieve(response.id)
    assert again.output_text == response.output_text
    raw = openai_sync.responses.with_raw_response.retrieve(response.id).http_response.json()
    required = ("id", "object", "created_at", "error", "incomplete_details", "instructions", "model", "tools")
    required += ("output", "parallel_tool_calls", "metadata", "tool_choice", "temperature", "top_p")
    assert set(required) <= raw.keys()


async def test_a_response_is_run_in_the_background_and_polled(openai: AsyncOpenAI, stack: Stack) -> None:
    response = await openai.responses.create(model=stack.model, input="Weirs?", background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    done = await ended(openai, response.id)
    assert (done.status, bool(done.output_text)) == ("completed", True)


async def test_a_limit_of_tokens_makes_it_incomplete(openai: AsyncOpenAI, stack: Stack) -> None:
    response = await openai.responses.create(model=stack.model, input="Weirs?", max_output_tokens=4)
    assert response.status == "incomplete"
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"
    assert response.usage and response.usage.output_tokens == 4


async def test_a_stream_tells_everything_in_order_and_adds_up(openai: AsyncOpenAI, stack: Stack) -> None:
    stream = await openai.responses.create(model=stack.model, input="Weirs?", stream=True)
    events = [event async for event in stream]
    kinds = [event.type for event in events]
    texts = kinds.count("response.output_text.delta")
    assert texts > 0
    assert kinds == [
        *("response.created", "response.queued", "response.in_progress", "response.output_item.added"),
        "response.content_part.added",
        *["response.output_text.delta"] * texts,
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last: Any = events[-1]
    assert told == last.response.output_text
    stored = await openai.responses.retrieve(last.response.id)
    assert stored.model_dump() == last.response.model_dump()


async def test_the_clients_own_stream_helper_gets_the_final_response(
    openai: AsyncOpenAI, stack: Stack
) -> None:
    async with openai.responses.stream(model=stack.model, input="Weirs?") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text


async def test_a_background_stream_cut_anywhere_goes_on_without_gap_or_repeat(
    openai: AsyncOpenAI, stack: Stack
) -> None:
    stream = await openai.responses.create(model=stack.model, input="Weirs?", background=True, stream=True)
    seen, response_id = [], ""
    async for event in stream:
        if event.type == "response.created":
            response_id = event.response.id
        seen.append(event)
        if event.sequence_number == 6:
            break
    await stream.close()
    rest = await openai.responses.retrieve(response_id, stream=True, starting_after=6)
    seen += [event async for event in rest]
    whole = [event async for event in await openai.responses.retrieve(response_id, stream=True)]
    assert [event.sequence_number for event in seen] == list(range(len(whole)))
    assert [event.type for event in seen] == [event.type for event in whole]
    for cursor in range(len(whole)):
        tail = await openai.responses.retrieve(response_id, stream=True, starting_after=cursor)
        assert [event.to_dict() async for event in tail] == [event.to_dict() for event in whole[cursor + 1 :]]


async def test_a_conversation_goes_on_from_an_earlier_response(openai: AsyncOpenAI, stack: Stack) -> None:
    first = await openai.responses.create(
        model=stack.model, input="My name is Ada.", instructions="Be brief.", max_output_tokens=64
    )
    second = await openai.responses.create(
        model=stack.model, input="What is my name?", previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    assert first.usage and second.usage
    assert second.usage.input_tokens > first.usage.input_tokens  # it saw the conversation
    items = [item async for item in openai.responses.input_items.list(second.id, limit=1, order="asc")]
    assert [(item.type, item.role) for item in items] == [  # type: ignore[union-attr]
        ("message", "user"),
        ("message", "assistant"),
        ("message", "user"),
    ]
    assert items[2].content[0].text == "What is my name?"  # type: ignore[union-attr,index]
    newest = (await openai.responses.input_items.list(second.id, limit=2)).data
    assert [item.id for item in newest] == [items[2].id, items[1].id]
    await openai.responses.delete(first.id)
    third = await openai.responses.create(model=stack.model, input="And?", previous_response_id=second.id)
    assert third.status == "completed"


async def test_a_response_that_is_not_there_is_nowhere(openai: AsyncOpenAI, stack: Stack) -> None:
    unknown = "resp_" + "0" * 26
    for call in (
        openai.responses.retrieve(unknown),
        openai.responses.cancel(unknown),
        openai.responses.delete(unknown),
        openai.responses.input_items.list(unknown),
        openai.responses.create(model=stack.model, input="x", previous_response_id=unknown),
    ):
        with pytest.raises(NotFoundError):
            await call
    kept = await openai.responses.create(model=stack.model, input="x", background=True)
    await ended(openai, kept.id)
    await openai.responses.delete(kept.id)
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(kept.id)
    passing = await openai.responses.create(model=stack.model, input="x", store=False)
    assert passing.status == "completed"
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(passing.id)


async def test_a_background_response_is_cancelled(openai: AsyncOpenAI, stack: Stack) -> None:
    response = await openai.responses.create(
        model=stack.model,
        input="A long story.",
        background=True,
        max_output_tokens=3000,
        extra_body={"ignore_eos": True},
    )
    assert (await openai.responses.cancel(response.id)).status == "cancelled"
    assert (await openai.responses.cancel(response.id)).status == "cancelled"
    waited = await openai.responses.create(model=stack.model, input="x")
    with pytest.raises(BadRequestError):
        await openai.responses.cancel(waited.id)


async def test_an_idempotency_key_is_one_response(openai: AsyncOpenAI, stack: Stack) -> None:
    async def create(key: str, **body: Any) -> Any:
        return await openai.responses.create(
            model=stack.model, input="Once.", extra_headers={"Idempotency-Key": key}, **body
        )

    first = await create("responses 1", background=True)
    assert (await create("responses 1", background=True)).to_dict() == first.to_dict()
    with pytest.raises(UnprocessableEntityError):
        await create("responses 1", background=True, temperature=0.5)
    waited = await create("responses 2")
    assert (await create("responses 2")).to_dict() == waited.to_dict()


async def test_leaving_a_synchronous_response_stops_it_and_a_background_one_goes_on(
    http: httpx.AsyncClient, stack: Stack
) -> None:
    long = {"model": stack.model, "input": "x", "max_output_tokens": 3000, "ignore_eos": True, "stream": True}
    for background, status in ((False, "cancelled"), (True, "in_progress")):
        async with http.stream("POST", "/v1/responses", json=long | {"background": background}) as answer:
            task_id = answer.headers["x-headrace-task-id"]
            async for line in answer.aiter_lines():
                if line.startswith("event: response.output_text.delta"):
                    break
        if background:
            assert (await http.get(f"/v1/tasks/{task_id}")).json()["status"] == status
            await http.post(f"/v1/tasks/{task_id}/cancel")
            continue

        async def stopped(task_id: str = task_id, status: str = status) -> bool:
            return bool((await http.get(f"/v1/tasks/{task_id}")).json()["status"] == status)

        await eventually_async(stopped, 2.0, "the task stopped")


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"background": True, "store": False}, "store", "invalid_value"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", "unsupported_parameter"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]", "unsupported_parameter"),
        ({"max_tool_calls": 2}, "max_tool_calls", "unsupported_parameter"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "unsupported_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///x"}]}]},
            "input[0].content[0].type",
            "unsupported_parameter",
        ),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": 10**6}, "max_output_tokens", "context_length_exceeded"),
        ({"input": "word " * 20000}, "input", "context_length_exceeded"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"surprise": 1}, "surprise", "unknown_parameter"),
        ({"model": "nobody's"}, "model", "model_not_found"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    http: httpx.AsyncClient, stack: Stack, change: dict[str, Any], param: str, code: str
) -> None:
    body = {"model": stack.model, "input": "x"} | change
    answer = await http.post("/v1/responses", json=body)
    error = answer.json()["error"]
    assert answer.status_code == (404 if code == "model_not_found" else 400), json.dumps(error)
    assert (error["code"], error["param"].split("[0]")[0] if param == "stop" else error["param"]) == (
        code,
        param,
    )
