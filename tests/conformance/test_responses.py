"""/v1/responses, by the official client: waited for, streamed, in the background, resumed, chained, deleted."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.support.sdk import Sdk
from tests.support.second_api import second_api, serving
from tests.support.stacks import SharedStack
from tests.support.waiting import eventually_async

CREATE, RETRIEVE = "responses.create", "responses.retrieve"
ENDED = {"completed", "failed", "cancelled", "incomplete"}
REQUIRED = (
    *(
        "id",
        "object",
        "created_at",
        "error",
        "incomplete_details",
        "instructions",
        "model",
        "tools",
        "output",
    ),
    *("parallel_tool_calls", "metadata", "tool_choice", "temperature", "top_p"),
)


async def ended(sdk: Sdk, response_id: str) -> Any:
    async def is_ended() -> bool:
        return (await sdk.do(RETRIEVE, response_id)).status in ENDED

    await eventually_async(is_ended, 20.0, f"{response_id} ended")
    return await sdk.do(RETRIEVE, response_id)


@pytest.mark.shows("responses-object")
async def test_a_response_is_waited_for(sdk: Sdk) -> None:
    response = await sdk.do(
        CREATE, model=sdk.model, input="Tell me about weirs.", metadata={"job": "7"}, temperature=0.5
    )
    assert response.status == "completed"
    assert response.output_text
    assert response._request_id
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.metadata, response.temperature, response.tools) == ({"job": "7"}, 0.5, [])
    again = await sdk.do(RETRIEVE, response.id)
    assert again.to_dict() == response.to_dict()
    assert set(REQUIRED) <= again.to_dict().keys()


@pytest.mark.shows("responses-background")
async def test_a_response_is_run_in_the_background_and_polled(sdk: Sdk) -> None:
    response = await sdk.do(CREATE, model=sdk.model, input="Weirs?", background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    done = await ended(sdk, response.id)
    assert (done.status, bool(done.output_text), done.id) == ("completed", True, response.id)


@pytest.mark.shows("responses-incomplete")
async def test_a_limit_of_tokens_makes_it_incomplete(sdk: Sdk) -> None:
    response = await sdk.do(CREATE, model=sdk.model, input="Weirs?", max_output_tokens=4)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.usage.output_tokens == 4


@pytest.mark.shows("responses-streamed")
async def test_a_stream_tells_everything_in_order_and_adds_up(sdk: Sdk) -> None:
    events = await sdk.all(CREATE, model=sdk.model, input="Weirs?", stream=True)
    kinds = [event.type.removeprefix("response.") for event in events]
    texts = kinds.count("output_text.delta")
    assert texts > 0
    assert kinds == [
        *("created", "queued", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * texts,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response
    assert told == last.output_text
    assert (await sdk.do(RETRIEVE, last.id)).to_dict() == last.to_dict()


@pytest.mark.shows("responses-stream-helper")
async def test_the_clients_own_helper_gets_the_final_response(sdk: Sdk) -> None:
    if isinstance(sdk.client, openai.AsyncOpenAI):
        async with sdk.client.responses.stream(model=sdk.model, input="Weirs?") as stream:
            final = await stream.get_final_response()
    else:

        def read() -> Any:
            with sdk.client.responses.stream(model=sdk.model, input="Weirs?") as stream:
                return stream.get_final_response()

        final = await asyncio.to_thread(read)
    assert final.output_text


@pytest.mark.shows("responses-resumed", "responses-replayed")
async def test_a_stream_cut_anywhere_goes_on_at_another_api_process(
    sdk: Sdk, deterministic_stack: SharedStack, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with second_api(deterministic_stack, tmp_path_factory.mktemp("second")) as (url, process):
        await serving(url, process)
        other = sdk.client.with_options(base_url=f"{url}/v1")
        for cut in (0, 3, 7, 12):
            response = await sdk.do(CREATE, model=sdk.model, input=f"Weirs {cut}?", background=True)
            seen = await _until(sdk.client, response.id, cut)
            elsewhere = Sdk(other, sdk.model)
            rest = await elsewhere.all(RETRIEVE, response.id, stream=True, starting_after=cut)
            whole = await elsewhere.all(RETRIEVE, response.id, stream=True)
            assert [event.sequence_number for event in whole] == list(range(len(whole)))
            assert [event.to_dict() for event in (*seen, *rest)] == [event.to_dict() for event in whole]
            assert whole[-1].type == "response.completed"
            assert await sdk.all(RETRIEVE, response.id, stream=True, starting_after=len(whole)) == []


async def _until(client: Any, response_id: str, cut: int) -> list[Any]:
    """The events of a stream up to one, after which the connection is closed."""
    seen = []
    if isinstance(client, openai.AsyncOpenAI):
        stream = await client.responses.retrieve(response_id, stream=True)
        async for event in stream:
            seen.append(event)
            if event.sequence_number == cut:
                break
        await stream.close()
        return seen

    def read() -> None:
        with client.responses.retrieve(response_id, stream=True) as stream:
            for event in stream:
                seen.append(event)
                if event.sequence_number == cut:
                    return

    await asyncio.to_thread(read)
    return seen


@pytest.mark.shows("responses-chained", "responses-input-items")
async def test_a_conversation_goes_on_from_an_earlier_response(sdk: Sdk) -> None:
    first = await sdk.do(
        CREATE, model=sdk.model, input="My name is Ada.", instructions="Be brief.", store=True
    )
    second = await sdk.do(CREATE, model=sdk.model, input="What is my name?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.instructions is None
    alone = await sdk.do(CREATE, model=sdk.model, input="What is my name?")
    assert second.usage.input_tokens > alone.usage.input_tokens  # it saw the conversation
    items = await sdk.all("responses.input_items.list", second.id, limit=1, order="asc")
    assert [(item.type, item.role) for item in items] == [
        ("message", "user"),
        ("message", "assistant"),
        ("message", "user"),
    ]
    assert items[1].content[0].text == first.output_text
    assert items[2].content[0].text == "What is my name?"
    newest = (await sdk.do("responses.input_items.list", second.id, limit=2)).data
    assert [item.id for item in newest] == [items[2].id, items[1].id]
    await sdk.do("responses.delete", first.id)
    third = await sdk.do(CREATE, model=sdk.model, input="And?", previous_response_id=second.id)
    assert third.status == "completed"


@pytest.mark.shows("responses-unknown")
async def test_a_response_that_is_not_there_is_nowhere(sdk: Sdk) -> None:
    unknown = "resp_" + "0" * 26
    for method in (RETRIEVE, "responses.cancel", "responses.delete", "responses.input_items.list"):
        with pytest.raises(openai.NotFoundError):
            await sdk.do(method, unknown)
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.do(CREATE, model=sdk.model, input="x", previous_response_id=unknown)
    assert caught.value.param == "previous_response_id"
    kept = await sdk.do(CREATE, model=sdk.model, input="x", background=True)
    await sdk.do("responses.delete", kept.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.do(RETRIEVE, kept.id)
    passing = await sdk.do(CREATE, model=sdk.model, input="x", store=False)
    assert passing.status == "completed"
    with pytest.raises(openai.NotFoundError):
        await sdk.do(RETRIEVE, passing.id)


@pytest.mark.shows("responses-cancelled")
async def test_a_background_response_is_cancelled(sdk: Sdk) -> None:
    response = await sdk.do(
        CREATE,
        model=sdk.model,
        input="A long story.",
        background=True,
        max_output_tokens=3000,
        extra_body={"ignore_eos": True},
    )
    cancelled = await sdk.do("responses.cancel", response.id)
    assert cancelled.status == "cancelled"
    assert (await sdk.do("responses.cancel", response.id)).to_dict() == cancelled.to_dict()
    events = await sdk.all(RETRIEVE, response.id, stream=True)
    assert events[-1].type == "response.cancelled"
    waited = await sdk.do(CREATE, model=sdk.model, input="x")
    with pytest.raises(openai.BadRequestError):
        await sdk.do("responses.cancel", waited.id)


@pytest.mark.shows("responses-idempotent")
async def test_an_idempotency_key_is_one_response(sdk: Sdk) -> None:
    async def create(key: str, **body: Any) -> Any:
        headers = {"Idempotency-Key": f"{key} {type(sdk.client).__name__}"}
        return await sdk.do(CREATE, model=sdk.model, input="Once.", extra_headers=headers, **body)

    first = await create("background", background=True)
    assert (await create("background", background=True)).to_dict() == first.to_dict()
    with pytest.raises(openai.UnprocessableEntityError):
        await create("background", background=True, temperature=0.5)
    waited = await create("waited")
    assert (await create("waited")).to_dict() == waited.to_dict()
    with pytest.raises(openai.BadRequestError):
        await create("waited", max_output_tokens=10**6)  # what is refused takes nothing from the key
    assert (await create("waited")).to_dict() == waited.to_dict()
    passing = await create("passing", store=False)
    assert (await create("passing", store=False)).to_dict() == passing.to_dict()


@pytest.mark.shows("responses-disconnect")
async def test_leaving_stops_what_was_waited_for_and_nothing_else(
    http: httpx.AsyncClient, deterministic_stack: SharedStack
) -> None:
    body = {"model": deterministic_stack.model, "input": "x", "max_output_tokens": 4000, "ignore_eos": True}
    left = {}
    for background in (True, False):
        asked = body | {"stream": True, "background": background}
        async with http.stream("POST", "/v1/responses", json=asked) as answer:
            left[background] = answer.headers["x-headrace-task-id"]
            async for line in answer.aiter_lines():
                if line.startswith("event: response.output_text.delta"):
                    break

    async def status(background: bool) -> str:
        return str((await http.get(f"/v1/tasks/{left[background]}")).json()["status"])

    async def stopped() -> bool:
        return await status(False) == "cancelled"

    await eventually_async(stopped, 2.0, "the task stopped")
    assert await status(True) in ("in_progress", "completed")
    await http.post(f"/v1/tasks/{left[True]}/cancel")


@pytest.mark.shows("responses-refused", "responses-background-stored")
@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"background": True, "store": False}, "store", "invalid_value"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]", "unsupported_parameter"),
        ({"max_tool_calls": 2}, "max_tool_calls", "unsupported_parameter"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary", "invalid_value"),
        ({"reasoning": {"effort": "endless"}}, "reasoning.effort", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [1]}, "input[0]", "invalid_value"),
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
        ({"stop": [""]}, "stop[0]", "invalid_value"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"surprise": 1}, "surprise", "unknown_parameter"),
        ({"cache_salt": "x"}, "cache_salt", "server_owned_parameter"),
        ({"webhook": "https://example.com/"}, "webhook", "invalid_value"),
        ({"model": "nobody's"}, "model", "model_not_found"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    http: httpx.AsyncClient, deterministic_stack: SharedStack, change: dict[str, Any], param: str, code: str
) -> None:
    body = {"model": deterministic_stack.model, "input": "x"} | change
    answer = await http.post("/v1/responses", json=body)
    error = answer.json()["error"]
    assert answer.status_code == (404 if code == "model_not_found" else 400), json.dumps(error)
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.shows("responses-null")
async def test_null_is_not_asking(http: httpx.AsyncClient, deterministic_stack: SharedStack) -> None:
    body: dict[str, Any] = {"model": deterministic_stack.model, "input": "x", "max_output_tokens": 4}
    names = ("conversation", "prompt", "moderation", "max_tool_calls", "tools", "tool_choice", "background")
    body |= dict.fromkeys((*names, "previous_response_id", "reasoning", "text", "include", "stream", "store"))
    answer = await http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
