"""What every Engine does, run on both implementations."""

import asyncio
import json
from typing import Any

import pytest

from runtime.chat_template import ModelTokenizer
from tests.engine.conftest import MAX_MODEL_LEN
from tests.support.engines import CHAT, COMPLETIONS, QUESTION, Result, chat, request, run
from tests.support.waiting import eventually
from workers.accounts import now_us
from workers.engine import Engine, RequestRejectedError


async def idle(engine: Engine, within_s: float = 10.0) -> None:
    """Wait until no request holds a slot."""
    for _ in range(int(within_s / 0.05)):
        health = await engine.check(timeout_s=30)
        if not health.running and not health.waiting:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still busy after {within_s} s: {health}")


async def test_it_says_what_it_is(engine: Engine, kind: str) -> None:
    info = engine.info
    assert (info.kind, info.max_num_seqs, info.max_model_len) == (kind, 8, MAX_MODEL_LEN)
    assert info.version


async def test_a_stream_has_several_items_and_equals_a_second_run(engine: Engine) -> None:
    first, second = await run(engine, request(chat())), await run(engine, request(chat()))
    assert len(first.outputs) > 3
    assert first.only.text == second.only.text
    assert first.only.ids == second.only.ids


@pytest.mark.vllm
@pytest.mark.parametrize("kind", ["vllm"], indirect=True)
async def test_the_model_knows_the_capital_of_france(engine: Engine) -> None:
    result = await run(engine, request(chat()))
    assert "Paris" in result.only.text
    assert result.only.finish == "stop"


async def test_the_ids_sent_spell_the_text_sent_at_every_item(
    engine: Engine, tokenizer: ModelTokenizer
) -> None:
    # Emoji are several tokens each: half of one must not be sent before the other half
    result = await run(engine, request(chat("Repeat this exactly: 🎉🎊🥳🎈 ñ 漢字"), max_tokens=48))
    seen = Result()
    for output in result.outputs:
        seen.add(output)
        spelled = tokenizer.decode(seen.only.ids)
        if output.finished:  # max_tokens may cut a character in two: its first half is counted and is no text
            spelled = spelled.rstrip("\ufffd")
        assert spelled == seen.only.text


async def test_usage_counts_the_prompt_as_the_api_does(engine: Engine, tokenizer: ModelTokenizer) -> None:
    body = chat()
    result = await run(engine, request(body, max_tokens=5))
    assert result.usage.prompt_tokens == tokenizer.count_chat(body)
    assert result.usage.output_tokens == 5
    assert [output.usage.output_tokens for output in result.outputs] == sorted(
        output.usage.output_tokens for output in result.outputs
    )
    assert result.usage.prefill_s is not None and result.usage.decode_s is not None


async def test_output_ends_at_max_tokens(engine: Engine) -> None:
    result = await run(engine, request(chat(ignore_eos=True), max_tokens=7))
    assert (len(result.only.ids), result.only.finish) == (7, "length")


async def test_ignoring_the_end_token_goes_on_to_max_tokens(engine: Engine, kind: str) -> None:
    more = 300 if kind == "deterministic" else 24  # than either would say by itself
    ended = await run(engine, request(chat(), max_tokens=more))
    result = await run(engine, request(chat(ignore_eos=True), max_tokens=more))
    assert (ended.only.finish, result.only.finish) == ("stop", "length")
    assert ended.usage.output_tokens < result.usage.output_tokens == more


async def test_output_ends_where_the_context_does(engine: Engine) -> None:
    result = await run(engine, request(chat(" water" * 980, ignore_eos=True), max_tokens=4096))
    assert result.usage.prompt_tokens + result.usage.output_tokens == MAX_MODEL_LEN
    assert result.only.finish == "length"


async def test_three_choices_each_end(engine: Engine) -> None:
    result = await run(engine, request(chat(n=3, temperature=1.0, seed=5), max_tokens=6))
    assert sorted(result.choices) == [0, 1, 2]
    assert all(choice.finish for choice in result.choices.values())
    assert result.usage.output_tokens == sum(len(choice.ids) for choice in result.choices.values())


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stop_string_ends_the_text_before_it(engine: Engine, n: int) -> None:
    whole = (await run(engine, request(chat(), max_tokens=24))).only.text
    stop = whole[9:16]  # begins and ends inside of words
    nearly = {} if n == 1 else {"temperature": 0.01}  # vLLM has no greedy choices beside each other
    result = await run(engine, request(chat(stop=["never this", stop], n=n, **nearly), max_tokens=24))
    assert result.choices[0].text == whole[: whole.index(stop)]
    assert (result.choices[0].finish, result.choices[0].stop) == ("stop", stop)
    await idle(engine)


async def test_a_stop_string_in_the_first_min_tokens_is_passed_over(engine: Engine) -> None:
    whole = await run(engine, request(chat(ignore_eos=True), max_tokens=24))
    stop = whole.outputs[1].deltas[0].text
    result = await run(engine, request(chat(stop=stop, min_tokens=20, ignore_eos=True), max_tokens=24))
    assert len(result.only.ids) >= 20


async def test_logprobs_stand_beside_every_token(engine: Engine) -> None:
    body = chat(logprobs=True, top_logprobs=3, ignore_eos=True)
    result = await run(engine, request(body, max_tokens=6))
    assert len(result.only.logprobs) == len(result.only.ids) == 6
    for item in result.only.logprobs:
        assert item["logprob"] <= 0
        assert bytes(item["bytes"]).decode() == item["token"]
        assert len(item["top_logprobs"]) == 3
        assert set(item["top_logprobs"][0]) == {"token", "logprob", "bytes"}
    assert "".join(item["token"] for item in result.only.logprobs) == result.only.text


async def test_logprobs_without_alternatives(engine: Engine) -> None:
    result = await run(engine, request(chat(logprobs=True), max_tokens=3))
    assert [item["top_logprobs"] for item in result.only.logprobs] == [[]] * len(result.only.ids)


async def test_logprobs_wait_with_the_text_that_may_be_a_stop_string(engine: Engine) -> None:
    body = chat(logprobs=True, stop=["never this at all"], ignore_eos=True)
    result = await run(engine, request(body, max_tokens=12))
    assert len(result.only.logprobs) == len(result.only.ids) == 12


async def test_a_completion_continues_text_or_token_ids(engine: Engine, tokenizer: ModelTokenizer) -> None:
    prompt = "The water wheel turns because"
    ids = tokenizer.encode_prompt(prompt)
    texts = [
        await run(engine, request({"prompt": given, "temperature": 0}, url=COMPLETIONS, max_tokens=8))
        for given in (prompt, ids)
    ]
    assert texts[0].only.ids == texts[1].only.ids
    assert texts[0].usage.prompt_tokens == len(ids)


async def test_completion_logprobs_have_the_shape_of_chat_ones(engine: Engine) -> None:
    body = {"prompt": "The sun", "temperature": 0, "logprobs": 2}
    result = await run(engine, request(body, url=COMPLETIONS, max_tokens=3))
    assert [len(item["top_logprobs"]) for item in result.only.logprobs] == [2, 2, 2]


@pytest.mark.parametrize("n", [1, 2])
async def test_tokens_come_several_at_once_but_for_the_first_and_the_last(engine: Engine, n: int) -> None:
    body = chat(ignore_eos=True, n=n, temperature=0.0 if n == 1 else 0.7, seed=5)
    one_by_one = await run(engine, request(body, max_tokens=20))
    result = await run(engine, request(body, max_tokens=20, tokens_at_once=8))
    for index in range(n):
        sizes = [len(d.token_ids) for item in result.outputs for d in item.deltas if d.index == index]
        assert sum(sizes) == 20 and all(size >= 8 for size in sizes[1:-1]), sizes
        assert len(sizes) <= 4, sizes  # 1, 8, 8 and 3, or fewer to a slow consumer
    assert [one.text for one in result.choices.values()] == [one.text for one in one_by_one.choices.values()]


async def test_a_stop_string_is_looked_for_at_every_token(engine: Engine) -> None:
    whole = await run(engine, request(chat(), max_tokens=24))
    stop = whole.only.text[5:10]
    result = await run(engine, request(chat(stop=stop), max_tokens=24, tokens_at_once=24))
    assert result.only.text == whole.only.text.partition(stop)[0]
    assert result.usage.output_tokens < whole.usage.output_tokens


async def test_an_aborted_stream_ends_with_abort(engine: Engine) -> None:
    given = request(chat(ignore_eos=True), max_tokens=900)
    result = Result()
    async for output in engine.generate(given):
        result.add(output)
        if len(result.outputs) == 2:
            await engine.abort(given.request_id)
    assert result.only.finish == "abort"
    assert len(result.only.ids) < 900
    await idle(engine)


async def test_aborting_an_unknown_request_does_nothing(engine: Engine) -> None:
    await engine.abort("nobody")


async def test_cancelling_the_consumer_frees_the_slot(engine: Engine) -> None:
    started = asyncio.Event()

    async def consume() -> None:
        async for _ in engine.generate(request(chat(ignore_eos=True), max_tokens=900)):
            started.set()

    task = asyncio.create_task(consume())
    await asyncio.wait_for(started.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle(engine)


async def test_more_requests_than_slots_all_finish(engine: Engine) -> None:
    results = await asyncio.gather(
        *(run(engine, request(chat(f"{number}?", ignore_eos=True), max_tokens=6)) for number in range(20))
    )
    assert [result.usage.output_tokens for result in results] == [6] * 20


async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(engine: Engine) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        await run(engine, request(chat(" water" * 1500)))
    assert (refused.value.param, refused.value.code) == ("messages", "context_length_exceeded")
    assert str(MAX_MODEL_LEN) in refused.value.message


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 5.0}, "max_tokens"),
    ({"min_tokens": 1.5}, "min_tokens"),
    ({"n": "2"}, "n"),
    ({"top_k": 1.5}, "top_k"),
    ({"temperature": True}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": float("inf")}, "top_p"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**70}, "seed"),
    ({"seed": True}, "seed"),
    ({"logit_bias": {5.0: 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": float("nan")}}, "logit_bias"),
    ({"logit_bias": {"5": float("inf")}}, "logit_bias"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
    ({"priority": "high"}, "priority"),
    ({"request_id": 5}, "request_id"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"session_id": 5}, "session_id"),
    ({"stop": [5]}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a\ud800"]}, "stop"),
    ({"stop_token_ids": [True]}, "stop_token_ids"),
    ({"stop_token_ids": ["5"]}, "stop_token_ids"),
    ({"allowed_token_ids": [1.0]}, "allowed_token_ids"),
    ({"logprobs": "yes"}, "logprobs"),
    ({"top_logprobs": 1.0, "logprobs": True}, "top_logprobs"),
    ({"response_format": "json"}, "response_format"),
    ({"messages": [{"role": "user", "content": "a\ud800"}]}, "messages"),
    ({"messages": ["hello"]}, "messages"),
    ({"messages": []}, "messages"),
    ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(
    ("fields", "param"), WRONG, ids=[f"{param}-{number}" for number, (_, param) in enumerate(WRONG)]
)
async def test_a_wrong_value_is_refused_by_name(engine: Engine, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        await run(engine, request({**chat(), **fields}))
    assert refused.value.param == param


@pytest.mark.parametrize("token", [True, "5", 1.0, -1, 2**40, None])
async def test_a_wrong_token_id_is_refused(engine: Engine, token: Any) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        await run(engine, request({"prompt": [1, token]}, url=COMPLETIONS))
    assert refused.value.param == "prompt"
    with pytest.raises(RequestRejectedError) as refused:
        await run(engine, request(chat(), emitted=[1, token]))
    assert refused.value.param == "emitted_token_ids"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"request_id": 5}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"trace_headers": {"traceparent": 5}}, "trace_headers"),
        ({"max_tokens": 5.0}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"url": "/v1/embeddings"}, "url"),
    ],
)
async def test_a_wrong_argument_beside_the_body_is_refused(
    engine: Engine, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        await run(engine, request(chat(), **fields))
    assert refused.value.param == param


async def test_several_greedy_choices_are_refused_by_name_or_given(engine: Engine, kind: str) -> None:
    if kind == "deterministic":
        assert len((await run(engine, request(chat(n=2), max_tokens=3))).choices) == 2
        return
    with pytest.raises(RequestRejectedError) as refused:
        await run(engine, request(chat(n=2)))
    assert refused.value.param == "n"


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "(("}},
        {"structured_outputs": {"grammar": "root ::= ((("}},
        {"response_format": {"type": "json_schema"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nope"}},
            }
        },
        {"structured_outputs": {"choice": ["x" * 70_000]}},
    ],
)
@pytest.mark.vllm
@pytest.mark.parametrize("kind", ["vllm"], indirect=True)
async def test_a_grammar_that_cant_be_followed_is_refused_by_name(
    engine: Engine, fields: dict[str, Any]
) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        await run(engine, request(chat(**fields)))
    assert refused.value.param == next(iter(fields))


@pytest.mark.vllm
@pytest.mark.parametrize("kind", ["vllm"], indirect=True)
async def test_output_follows_a_schema_and_a_forced_tool_is_called(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"type": "string", "enum": ["big", "small"]}},
        "required": ["size"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "size", "schema": schema}}
    tool = {"type": "function", "function": {"name": "size", "parameters": schema, "strict": True}}
    named = {"type": "function", "function": {"name": "size"}}
    shaped = await run(engine, request(chat(response_format=form), max_tokens=200))
    forced = await run(engine, request(chat(tools=[tool], tool_choice=named), max_tokens=200))
    some = await run(engine, request(chat(tools=[tool], tool_choice="required"), max_tokens=200))
    assert set(json.loads(shaped.only.text)) == {"size"}
    for result, finish in ((forced, "stop"), (some, "tool_calls")):
        call = result.only.calls[0]
        assert (call["function"]["name"], set(json.loads(call["function"]["arguments"]))) == (
            "size",
            {"size"},
        )
        assert call["id"]
        assert not result.only.text.strip()
        assert result.only.finish == finish


async def test_it_answers_after_all_those_refusals(engine: Engine) -> None:
    result = await asyncio.wait_for(run(engine, request(chat(), max_tokens=3)), 30)
    assert result.usage.output_tokens == 3
    await idle(engine)


async def test_null_means_not_given(engine: Engine) -> None:
    optional = (
        "n",
        "stop",
        "seed",
        "logprobs",
        "top_p",
        "priority",
        "response_format",
        "tools",
        "logit_bias",
    )
    plain = await run(engine, request(chat(), max_tokens=4))
    nulls = await run(engine, request(chat(**dict.fromkeys(optional)), max_tokens=4))
    assert plain.only.ids == nulls.only.ids


@pytest.mark.parametrize("kept", [1, 5, 11])
async def test_a_resumed_request_goes_on_after_what_was_sent(engine: Engine, kind: str, kept: int) -> None:
    body = chat("Tell me about rivers.", ignore_eos=True)
    whole = await run(engine, request(body, max_tokens=12))
    rest = await run(engine, request(body, max_tokens=12, emitted=whole.only.ids[:kept]))
    assert rest.usage.prompt_tokens == whole.usage.prompt_tokens
    assert rest.usage.output_tokens == len(rest.only.ids) == 12 - kept
    assert rest.usage.cached_prompt_tokens <= rest.usage.prompt_tokens
    assert rest.only.finish == "length"
    if kind == "deterministic":  # a model's arithmetic differs between prefill and decode
        assert whole.only.ids[:kept] + rest.only.ids == whole.only.ids


async def test_a_stop_string_across_the_seam_of_two_attempts_is_found(engine: Engine, kind: str) -> None:
    whole = await run(engine, request(chat(ignore_eos=True), max_tokens=24))
    first, second = (whole.outputs[number].deltas[0].text for number in (5, 6))
    stop = (first + second)[1:-1]
    cut = Result()
    async for output in engine.generate(request(chat(stop=stop, ignore_eos=True), max_tokens=24)):
        cut.add(output)
        if len(cut.only.ids) >= 4:
            break
    rest = await run(engine, request(chat(stop=stop, ignore_eos=True), max_tokens=24, emitted=cut.only.ids))
    text = cut.only.text + rest.only.text
    assert stop not in text
    if kind == "deterministic":
        assert text == whole.only.text[: whole.only.text.index(stop)]


async def test_a_request_resumed_at_its_very_end_ends_at_once(engine: Engine) -> None:
    body = chat(ignore_eos=True)
    whole = await run(engine, request(body, max_tokens=4))
    rest = await run(engine, request(body, max_tokens=4, emitted=whole.only.ids))
    assert (rest.only.text, rest.only.finish, rest.usage.output_tokens) == ("", "length", 0)


async def test_a_request_resumed_after_its_end_token_ends_at_once(
    engine: Engine, tokenizer: ModelTokenizer
) -> None:
    assert tokenizer.eos_token_id is not None
    rest = await run(engine, request(chat(), max_tokens=400, emitted=[60, tokenizer.eos_token_id]))
    assert (rest.only.text, rest.only.finish, rest.usage.output_tokens) == ("", "stop", 0)


@pytest.mark.parametrize("question", [QUESTION, [{"type": "text", "text": QUESTION}]])
async def test_content_parts_are_the_same_as_text(engine: Engine, question: Any) -> None:
    result = await run(engine, request(chat(question), url=CHAT, max_tokens=4))
    plain = await run(engine, request(chat(), max_tokens=4))
    assert result.only.ids == plain.only.ids


async def test_requests_share_the_engines_time_and_all_of_it(engine: Engine) -> None:
    await idle(engine)
    before = engine.accounts.read(now_us())
    asked = [request(chat(f"{QUESTION} ({i})", ignore_eos=True), max_tokens=4 + 4 * i) for i in range(6)]
    asked.append(request(chat(ignore_eos=True, n=2, temperature=1), max_tokens=8))
    began = now_us()
    await asyncio.gather(*(run(engine, one) for one in asked))
    await idle(engine)
    after = engine.accounts.read(now_us())
    used = [one.account.used_us for one in asked]
    assert sum(used) == after.busy_us - before.busy_us
    assert sum(used) <= now_us() - began
    assert all(used) and used[0] < used[5], "more tokens use more time"
    wall = [time.idle_us + time.busy_us + time.overhead_us for time in (before, after)]
    assert wall[1] - wall[0] >= now_us() - began - 100_000


async def test_of_requests_that_wait_inside_the_engine_the_urgent_one_goes_first(engine: Engine) -> None:
    began: list[str] = []

    async def first_token(name: str, priority: int, max_tokens: int) -> None:
        body = chat(f"Tell me about {name}.", ignore_eos=True)
        async for _ in engine.generate(request(body, max_tokens=max_tokens, priority=priority)):
            if name not in began:
                began.append(name)

    running = [asyncio.create_task(first_token(f"river {n}", 2, 40 + 4 * n)) for n in range(8)]
    await eventually(lambda: len(began) == 8, 60.0, "all slots are taken")
    waiting = [asyncio.create_task(first_token(f"hill {n}", 2, 4)) for n in range(3)]
    for _ in range(1000):  # until they wait in it
        if (await engine.check(timeout_s=30)).waiting == 3:
            break
    waiting.append(asyncio.create_task(first_token("the person", 0, 4)))
    await asyncio.gather(*running, *waiting)
    assert began[8] == "the person", began
    await idle(engine)
