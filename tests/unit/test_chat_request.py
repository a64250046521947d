"""The chat completion body: what is refused, and that the refusal names the field."""

from typing import Any

import pytest

from schemas.chat import ChatCompletionRequest
from schemas.errors import RequestError
from schemas.requests import validate

GOOD: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
OPTIONAL = [name for name, field in ChatCompletionRequest.model_fields.items() if not field.is_required()]


def refused(**changes: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        validate(ChatCompletionRequest, GOOD | changes)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        # each of these hangs a vLLM engine for good if it gets there
        ("max_tokens", 5.0),
        ("min_tokens", 1.5),
        ("temperature", True),
        ("seed", "x"),
        ("ignore_eos", "yes"),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"5": "1"}),
        ("stop_token_ids", [True]),
        ("top_k", 1.0),
        ("n", True),
        ("top_p", "0.5"),
        ("seed", 2**70),
        ("stream", 1),
        ("logprobs", 1),
        ("frequency_penalty", float("nan")),
        ("temperature", float("inf")),
        ("n", 0),
        ("n", 129),
        ("stop", [""]),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("top_logprobs", 21),
        ("max_tokens", 0),
        ("presence_penalty", 2.1),
        ("model", ""),
        ("messages", []),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    extra = {"logprobs": True} if field == "top_logprobs" else {}
    assert (refused(**{field: value} | extra).param or "").startswith(field)


@pytest.mark.parametrize("name", ["priority", "cache_salt", "request_id", "kv_transfer_params", "vllm_xargs"])
def test_what_the_server_owns_is_refused_as_such(name: str) -> None:
    error = refused(**{name: 1})
    assert (error.code, error.param) == ("server_owned_parameter", name)


def test_what_is_not_served_is_refused_as_such() -> None:
    assert refused(functions=[]).code == "unsupported_parameter"
    assert validate(ChatCompletionRequest, GOOD | {"functions": None, "suffix": None, "cache_salt": None})


def test_an_unknown_field_is_named() -> None:
    error = refused(temprature=1)
    assert (error.code, error.param) == ("unknown_parameter", "temprature")


def test_a_nested_unknown_field_is_named_with_its_place() -> None:
    error = refused(messages=[{"role": "user", "content": "hi", "colour": "red"}])
    assert error.param == "messages[0].colour"


def test_an_image_is_refused_by_its_place() -> None:
    part = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
    error = refused(messages=[{"role": "user", "content": [part]}])
    assert (error.param or "").startswith("messages[0].content")


@pytest.mark.parametrize("name", OPTIONAL)
def test_every_optional_field_takes_null(name: str) -> None:
    assert validate(ChatCompletionRequest, GOOD | {name: None})


def test_options_of_a_stream_need_a_stream() -> None:
    error = refused(stream_options={"include_usage": True})
    assert (error.param, error.message) == (
        "stream_options",
        "Invalid stream_options: stream_options needs stream.",
    )


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RequestError) as caught:
        validate(ChatCompletionRequest, {"model": "m"})
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "messages")


def test_the_engine_gets_no_delivery_options_and_no_field_without_effect() -> None:
    request = validate(ChatCompletionRequest, GOOD | {"stream": True, "user": "u", "seed": 1, "top_p": None})
    assert request.engine_body() == GOOD | {"seed": 1}


def test_a_schema_keeps_its_name_on_the_way_to_the_engine() -> None:
    format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    request = validate(ChatCompletionRequest, GOOD | {"response_format": format_})
    assert request.engine_body()["response_format"] == format_
