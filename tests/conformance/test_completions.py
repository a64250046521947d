"""POST /v1/completions."""

from collections import defaultdict
from typing import Any

import httpx
import openai
import pytest

from tests.support.sdk import Sdk
from tests.support.sse import read_events
from tests.support.stacks import SharedStack

PROMPT = "The mill wheel"


@pytest.mark.shows("completions-object")
async def test_a_completion_has_sixteen_tokens_unless_asked_for_others(sdk: Sdk) -> None:
    answer = await sdk.do("completions.create", model=sdk.model, prompt=PROMPT)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.model == sdk.model
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, "length")
    assert answer.choices[0].text
    assert answer._request_id


@pytest.mark.shows("completions-lists")
async def test_each_prompt_of_a_list_gets_its_choices(sdk: Sdk) -> None:
    fields: dict[str, Any] = {"model": sdk.model, "max_tokens": 6, "seed": 5, "temperature": 0.5}
    prompts = [PROMPT, "A flume", "Each gate"]
    alone = [await sdk.do("completions.create", prompt=one, n=2, **fields) for one in prompts]
    together = await sdk.do("completions.create", prompt=prompts, n=2, **fields)
    assert [choice.index for choice in together.choices] == list(range(6))
    assert [choice.text for choice in together.choices] == [
        choice.text for answer in alone for choice in answer.choices
    ]
    assert len({choice.text for choice in together.choices}) == 6
    assert together.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)
    assert together.usage.completion_tokens == 36


@pytest.mark.shows("completions-lists")
async def test_prompts_are_taken_as_token_ids_too(sdk: Sdk) -> None:
    fields: dict[str, Any] = {"model": sdk.model, "max_tokens": 5}
    one, other = [70, 71, 72], [80, 81]
    first = await sdk.do("completions.create", prompt=one, **fields)
    second = await sdk.do("completions.create", prompt=other, **fields)
    both = await sdk.do("completions.create", prompt=[one, other], **fields)
    assert [choice.text for choice in both.choices] == [first.choices[0].text, second.choices[0].text]
    assert both.usage.prompt_tokens == 5
    single = await sdk.do("completions.create", prompt=[PROMPT], **fields)
    assert (
        single.choices[0].text
        == (await sdk.do("completions.create", prompt=PROMPT, **fields)).choices[0].text
    )


@pytest.mark.shows("completions-streamed")
async def test_a_stream_of_several_prompts_adds_up_to_the_plain_answer(sdk: Sdk) -> None:
    fields: dict[str, Any] = {
        "model": sdk.model,
        "prompt": [PROMPT, "A flume"],
        "n": 2,
        "seed": 3,
        "max_tokens": 7,
        "temperature": 0.5,
        "logprobs": 1,
    }
    plain = await sdk.do("completions.create", **fields)
    chunks = await sdk.all(
        "completions.create", stream=True, stream_options={"include_usage": True}, **fields
    )
    texts: dict[int, str] = defaultdict(str)
    tokens: dict[int, list[str]] = defaultdict(list)
    finished: dict[int, str] = {}
    for chunk in chunks[:-1]:
        assert (chunk.object, chunk.id, chunk.usage) == ("text_completion", chunks[0].id, None)
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens if choice.logprobs else []
            if choice.finish_reason:
                assert choice.index not in finished
                finished[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.text for choice in plain.choices}
    assert tokens == {choice.index: choice.logprobs.tokens for choice in plain.choices}
    assert finished == {choice.index: choice.finish_reason for choice in plain.choices}
    assert chunks[-1].choices == []
    assert chunks[-1].usage == plain.usage


@pytest.mark.shows("completions-logprobs")
@pytest.mark.parametrize("top", [0, 3])
async def test_logprobs_are_four_lists_that_go_together(sdk: Sdk, top: int) -> None:
    answer = await sdk.do("completions.create", model=sdk.model, prompt=PROMPT, max_tokens=5, logprobs=top)
    text, found = answer.choices[0].text, answer.choices[0].logprobs
    assert "".join(found.tokens) == text
    assert len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) == 5
    assert all(value <= 0 for value in found.token_logprobs)
    for token, offset, alternatives in zip(found.tokens, found.text_offset, found.top_logprobs, strict=True):
        assert text[offset : offset + len(token)] == token
        assert len(alternatives) == top


@pytest.mark.shows("completions-refused")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": " end"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["x", ""]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": ["x"] * 65, "n": 2}, "n"),
        ({"messages": []}, "messages"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    http: httpx.AsyncClient, deterministic_stack: SharedStack, fields: dict[str, Any], param: str
) -> None:
    body = {"model": deterministic_stack.model, "prompt": "x"} | fields
    answer = await http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.shows("completions-refused")
async def test_null_is_as_good_as_leaving_a_field_out(sdk: Sdk) -> None:
    answer = await sdk.do(
        "completions.create", model=sdk.model, prompt=PROMPT, suffix=None, echo=None, best_of=None, stop=None
    )
    assert answer.choices[0].text


async def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(sdk: Sdk) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.do("completions.create", model=sdk.model, prompt=["short", "word " * 5000])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert "4096" in caught.value.message


@pytest.mark.shows("completions-as-task")
async def test_a_completion_is_a_task_as_well(
    http: httpx.AsyncClient, deterministic_stack: SharedStack
) -> None:
    body = {"model": deterministic_stack.model, "prompt": [PROMPT, "A flume"], "max_tokens": 4}
    plain = (await http.post("/v1/completions", json=body)).json()
    submitted = await http.post("/v1/tasks", json={"url": "/v1/completions", "body": body})
    assert submitted.status_code == 202, submitted.text
    path = f"/v1/tasks/{submitted.json()['id']}"
    events = [event async for event in read_events(http, f"{path}/events")]
    assert events[-1]["type"] == "task.completed"
    texts = ["", ""]
    for event in events:
        for choice in event.get("choices", ()):
            texts[choice["index"]] += choice["text"]
    task = (await http.get(path)).json()
    assert task["response"]["object"] == "text_completion"
    assert [choice["text"] for choice in task["response"]["choices"]] == texts
    assert texts == [choice["text"] for choice in plain["choices"]]
    assert task["usage"]["completion_tokens"] == 8
