"""POST /v1/chat/completions, by the official client, on made-up text."""

import json
from collections import defaultdict
from typing import Any

import httpx
import openai
import pytest

from schemas.chat import ChatCompletionRequest
from schemas.errors import SERVER_OWNED
from tests.support.sdk import Sdk
from tests.support.stacks import SharedStack

CREATE = "chat.completions.create"
MESSAGES: Any = [{"role": "user", "content": "Tell me about mill wheels."}]


def texts_of(chunks: list[Any]) -> dict[int, str]:
    """The text of each choice of a stream."""
    texts: dict[int, str] = defaultdict(str)
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    return texts


@pytest.mark.shows("chat-minimal")
async def test_a_minimal_request_is_answered_with_all_that_clients_read(sdk: Sdk) -> None:
    answer = await sdk.do(CREATE, model=sdk.model, messages=MESSAGES)
    assert answer._request_id
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", sdk.model)
    assert answer.system_fingerprint.startswith("headrace-")
    choice = answer.choices[0]
    assert (choice.index, choice.message.role, choice.finish_reason) == (0, "assistant", "stop")
    assert choice.message.content and choice.message.tool_calls is None
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 1


@pytest.mark.shows("chat-unknown-model", "error-envelope")
async def test_an_unknown_model_is_not_found(sdk: Sdk) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.do(CREATE, model="gpt-none", messages=MESSAGES)
    error = caught.value
    assert (error.code, error.param, error.type) == ("model_not_found", "model", "not_found_error")
    assert set(error.response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.shows("chat-stream-equals-plain", "chat-first-chunk")
async def test_a_stream_says_what_the_plain_answer_says(sdk: Sdk) -> None:
    fields: dict[str, Any] = {"model": sdk.model, "messages": MESSAGES, "seed": 7, "temperature": 0.7, "n": 2}
    plain = await sdk.do(CREATE, **fields)
    chunks = await sdk.all(CREATE, stream=True, **fields)
    assert texts_of(chunks) == {choice.index: choice.message.content for choice in plain.choices}
    assert {(chunk.object, chunk.id, chunk.model) for chunk in chunks} == {
        ("chat.completion.chunk", chunks[0].id, sdk.model)
    }
    roles = [
        (choice.index, choice.delta.role) for chunk in chunks for choice in chunk.choices if choice.delta.role
    ]
    assert roles == [(0, "assistant"), (1, "assistant")]
    assert chunks[0].choices[0].index == 0


@pytest.mark.shows("chat-usage-last")
async def test_usage_is_the_last_chunk_and_null_before(sdk: Sdk) -> None:
    fields: dict[str, Any] = {"model": sdk.model, "messages": MESSAGES, "max_tokens": 5}
    plain = await sdk.do(CREATE, **fields)
    chunks = await sdk.all(CREATE, stream=True, stream_options={"include_usage": True}, **fields)
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks[:-1])
    assert (chunks[-1].choices, chunks[-1].usage) == ([], plain.usage)


@pytest.mark.shows("chat-usage-not-asked", "sse-frames")
@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions"])
async def test_frames_are_plain_data_lines_without_usage(
    http: httpx.AsyncClient, deterministic_stack: SharedStack, url: str
) -> None:
    body = {"model": deterministic_stack.model, "stream": True, "stream_options": {}, "max_tokens": 4}
    prompt = {"messages": MESSAGES} if "chat" in url else {"prompt": "x"}
    answer = await http.post(url, json=body | prompt)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in answer.text.replace(": ka\n", "").split("\n\n") if block]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(block[6:]) for block in blocks[:-1])


@pytest.mark.shows("chat-usage-running")
async def test_running_usage_is_on_every_chunk_and_grows(sdk: Sdk) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await sdk.all(
        CREATE, model=sdk.model, messages=MESSAGES, max_tokens=6, stream=True, stream_options=options
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    assert len({chunk.usage.prompt_tokens for chunk in chunks}) == 1


@pytest.mark.shows("chat-stream-helper")
async def test_the_stream_helper_folds_three_choices(sdk: Sdk) -> None:
    fields: dict[str, Any] = {"model": sdk.model, "messages": MESSAGES, "n": 3, "seed": 2}
    plain = await sdk.do(CREATE, **fields)
    folded = await sdk.run_stream("chat.completions.stream", **fields)
    assert [choice.message.content for choice in folded.choices] == [
        choice.message.content for choice in plain.choices
    ]
    assert {choice.finish_reason for choice in folded.choices} == {"stop"}


@pytest.mark.shows("chat-logprobs")
@pytest.mark.parametrize("top", [None, 0, 3])
async def test_logprobs_come_with_and_without_alternatives(sdk: Sdk, top: int | None) -> None:
    fields: dict[str, Any] = {"model": sdk.model, "messages": MESSAGES, "max_tokens": 4, "logprobs": True}
    answer = await sdk.do(CREATE, top_logprobs=top, **fields)
    found = answer.choices[0].logprobs.content
    assert "".join(item.token for item in found) == answer.choices[0].message.content
    assert all(len(item.top_logprobs) == (top or 0) for item in found)
    assert all(bytes(item.bytes).decode() == item.token for item in found)
    chunks = await sdk.all(CREATE, top_logprobs=top, stream=True, **fields)
    streamed = [
        item
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for item in choice.logprobs.content
    ]
    assert streamed == found


@pytest.mark.shows("chat-stops")
async def test_each_of_four_stops_ends_the_text_before_it(sdk: Sdk) -> None:
    fields: dict[str, Any] = {"model": sdk.model, "messages": MESSAGES, "max_tokens": 24}
    whole = (await sdk.do(CREATE, **fields)).choices[0].message.content
    stops = ["~~", whole.split()[9], whole.split()[5], "never"]
    cut = (await sdk.do(CREATE, stop=stops, **fields)).choices[0]
    end = min(whole.index(stop) for stop in stops if stop in whole)
    assert (cut.message.content, cut.finish_reason) == (whole[:end], "stop")
    chunks = await sdk.all(CREATE, stop=stops, stream=True, **fields)
    assert texts_of(chunks)[0] == whole[:end]


@pytest.mark.shows("chat-parts")
async def test_text_parts_read_as_their_text(sdk: Sdk) -> None:
    parts = [{"type": "text", "text": "Tell me about mill wheels."}]
    fields: dict[str, Any] = {"model": sdk.model, "max_tokens": 8}
    plain = await sdk.do(CREATE, messages=MESSAGES, **fields)
    same = await sdk.do(CREATE, messages=[{"role": "user", "content": parts}], **fields)
    assert same.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.shows("chat-accepted-fields")
async def test_fields_without_effect_are_accepted(sdk: Sdk) -> None:
    fields: dict[str, Any] = {"model": sdk.model, "messages": MESSAGES, "max_tokens": 5}
    plain = await sdk.do(CREATE, **fields)
    same = await sdk.do(
        CREATE,
        user="u",
        safety_identifier="s",
        store=True,
        metadata={"job": "7"},
        service_tier="auto",
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        verbosity="low",
        prediction={"type": "content", "content": "x"},
        **fields,
    )
    assert same.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.shows("chat-null-fields")
async def test_every_optional_field_may_be_null(
    http: httpx.AsyncClient, deterministic_stack: SharedStack
) -> None:
    optional = [name for name, field in ChatCompletionRequest.model_fields.items() if not field.is_required()]
    refused = ["functions", "function_call", "audio", "modalities", "web_search_options"]
    body = {"model": deterministic_stack.model, "messages": MESSAGES} | dict.fromkeys([*optional, *refused])
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.shows("chat-server-owned")
@pytest.mark.parametrize(
    ("name", "code"),
    [
        *((name, "server_owned_parameter") for name in sorted(SERVER_OWNED)),
        ("temprature", "unknown_parameter"),
        ("functions", "unsupported_parameter"),
        ("modalities", "unsupported_parameter"),
    ],
)
async def test_what_is_not_the_callers_to_set_is_refused_by_name(sdk: Sdk, name: str, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.do(CREATE, model=sdk.model, messages=MESSAGES, extra_body={name: "x"})
    assert (caught.value.code, caught.value.param) == (code, name)


@pytest.mark.shows("chat-no-parser")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]),
        ("reasoning_effort", "low"),
    ],
)
async def test_a_model_without_a_parser_says_so(sdk: Sdk, field: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.do(CREATE, model=sdk.model, messages=MESSAGES, **{field: value})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)
    assert "parser" in caught.value.message


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"in": schema}}
    return schema


@pytest.mark.shows("chat-structured-bounded")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [*range(9999)]}}},
        ),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": deep(40)}}),
        ("structured_outputs", {"json": {"type": "string", "maxLength": 10**9}}),
        ("structured_outputs", {"json": {"enum": ["x" * 70_000]}}),
        ("structured_outputs", {"regex": "a" * 5_000}),
        ("structured_outputs", {"regex": ".{0,2000}x"}),
        ("structured_outputs", {"json": {"type": "string", "pattern": "[a-z]+" * 1_000}}),
        ("structured_outputs", {"json": {"properties": {f"p{i}": {} for i in range(401)}}}),
        ("structured_outputs", {"choice": ["x"] * 1_001}),
        ("structured_outputs", {"regex": "a", "choice": ["x"]}),
        ("structured_outputs", {}),
    ],
)
async def test_schemas_and_grammars_are_bounded(sdk: Sdk, field: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.do(CREATE, model=sdk.model, messages=MESSAGES, extra_body={field: value})
    assert (caught.value.param or "").startswith(field)
