"""The pure decisions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.failures import RULES, Failure, is_dead
from core.ids import created_ms, looks_like_id, make_id
from core.keys import is_well_formed, lookup_of, make_key, matches
from core.lanes import Lane, LengthBounds, LengthClass, Priority, lanes_of, parse_length_classes
from core.lengths import ContextLengthExceededError, fit_lengths
from core.pricing import Tariff, Usage, cost_usd_micros
from core.resume import restart_reason
from core.states import FINAL, OPEN, TRANSITIONS, TaskState, may_move

tokens = st.integers(min_value=0, max_value=10**9)
prices = st.integers(min_value=0, max_value=10**9)


def test_every_state_has_its_transitions_and_final_ones_have_none() -> None:
    assert set(TRANSITIONS) == set(TaskState)
    assert all(not TRANSITIONS[state] for state in FINAL)
    assert all(TRANSITIONS[state] for state in OPEN)


def test_a_task_expires_only_before_it_used_the_engine() -> None:
    assert {state for state in TaskState if may_move(state, TaskState.EXPIRED)} == {TaskState.QUEUED}


def test_a_cancel_is_never_undone() -> None:
    assert TRANSITIONS[TaskState.CANCELLING] <= FINAL


def test_every_failure_has_a_rule_with_a_public_message() -> None:
    assert set(RULES) == set(Failure)
    assert all(rule.message.endswith(".") and 400 <= rule.http_status < 600 for rule in RULES.values())


def test_a_task_is_dead_when_only_its_attempts_ran_out() -> None:
    assert is_dead(Failure.WORKER_LOST)
    assert not is_dead(Failure.REQUEST_REJECTED)
    assert not is_dead(None)


def test_a_drain_is_never_counted_against_a_task() -> None:
    assert not RULES[Failure.WORKER_DRAINED].counts


@given(st.integers(min_value=0, max_value=2**48 - 1), st.binary(min_size=10, max_size=10))
def test_an_id_tells_when_it_was_made(now_ms: int, entropy: bytes) -> None:
    made = make_id("task", now_ms, entropy)
    assert looks_like_id("task", made)
    assert created_ms(made) == now_ms


@given(st.integers(min_value=0, max_value=2**48 - 2), st.binary(min_size=10, max_size=10))
def test_ids_sort_by_time(now_ms: int, entropy: bytes) -> None:
    assert make_id("task", now_ms, b"\xff" * 10) < make_id("task", now_ms + 1, entropy)


@pytest.mark.parametrize("text", ["", "task_", "task_short", "file_" + "0" * 26, "task_" + "u" * 26])
def test_what_is_no_id_is_seen_without_a_look_up(text: str) -> None:
    assert not looks_like_id("task", text)


def test_a_key_matches_its_digest_under_the_same_pepper_only() -> None:
    key = make_key(bytes(range(44)), b"pepper")
    assert is_well_formed(key.text)
    assert key.lookup == lookup_of(key.text)
    assert matches(key.text, b"pepper", key.digest)
    assert not matches(key.text, b"other", key.digest)
    assert not matches(key.text[:-1] + "z", b"pepper", key.digest)


def test_the_lookup_part_leaves_the_secret_part_out() -> None:
    key = make_key(bytes(range(44)), b"pepper")
    assert len(key.text) - len(key.lookup) == 32


@given(st.sampled_from(LengthClass), st.sampled_from(Priority), st.sampled_from(["m", "org/m.v1", "a.b.c"]))
def test_a_queue_name_reads_back_as_its_lane(
    length_class: LengthClass, priority: Priority, model: str
) -> None:
    lane = Lane(model, length_class, priority)
    assert Lane.parse(lane.queue) == lane


@pytest.mark.parametrize(
    ("total", "expected"),
    [(1, LengthClass.SHORT), (512, LengthClass.SHORT), (513, LengthClass.MEDIUM), (2049, LengthClass.LONG)],
)
def test_length_bounds_are_inclusive(total: int, expected: LengthClass) -> None:
    assert LengthBounds(512, 2048).classify(total) is expected


def test_a_worker_looks_at_people_first_and_short_work_before_long() -> None:
    queues = [lane.queue for lane in lanes_of("m")]
    assert queues[0] == "m.short.interactive"
    assert queues[-1] == "m.long.batch"
    assert len(queues) == len(set(queues)) == 9


def test_an_unknown_length_class_is_named() -> None:
    assert parse_length_classes("long, short") == [LengthClass.SHORT, LengthClass.LONG]
    with pytest.raises(ValueError, match="'shrt'"):
        parse_length_classes("shrt")


def test_a_request_that_fills_the_context_exactly_fits() -> None:
    assert fit_lengths(90, 10, 100).total_tokens == 100
    assert fit_lengths(90, None, 100).max_output_tokens == 10


@pytest.mark.parametrize("asked", [None, 1, 50])
def test_a_prompt_without_room_for_one_token_is_refused_with_both_numbers(asked: int | None) -> None:
    with pytest.raises(ContextLengthExceededError, match=r"100 tokens.*100 in the prompt"):
        fit_lengths(100, asked, 100)


@given(tokens, tokens, tokens, prices, prices, prices)
def test_a_cost_is_within_half_a_micro_dollar_of_the_exact_price(
    prompt: int, cached: int, output: int, price_prompt: int, price_cached: int, price_output: int
) -> None:
    usage = Usage(prompt + cached, cached, output)
    cost = cost_usd_micros(usage, Tariff(price_prompt, price_cached, price_output))
    exact = prompt * price_prompt + cached * price_cached + output * price_output
    assert abs(cost * 1_000_000 - exact) <= 500_000


def test_more_cached_than_prompt_tokens_is_impossible() -> None:
    with pytest.raises(ValueError, match="impossible"):
        Usage(1, 2, 0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, None),
        ({"temperature": 0, "seed": 1}, None),
        ({"repetition_penalty": 1.3}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"stop": ["x"]}, None),
        ({"seed": 1, "temperature": 0.7}, "seed"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, "tools"),
        ({"structured_outputs": {"regex": "a"}}, "response_format"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [1, 2]}, None),
        ({"prompt": ["a"]}, None),
        ({"prompt": "a", "logprobs": 0}, "logprobs"),  # of the chosen tokens alone
        ({"messages": [], "logprobs": False}, None),
    ],
)
def test_an_attempt_continues_only_where_the_rest_depends_on_the_tokens_alone(
    body: dict[str, Any], reason: str | None
) -> None:
    assert restart_reason(body) == reason


def test_reasoning_is_read_anew_in_chat_alone() -> None:
    assert restart_reason({"messages": []}, reads_reasoning=True) == "reasoning"
    assert restart_reason({"prompt": "a"}, reads_reasoning=True) is None
