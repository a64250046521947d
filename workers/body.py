"""What an engine checks and reads in a request body; needs neither vLLM nor torch.

The API validated the body once. An engine checks again because one wrong-typed value hangs a vLLM core for
good (no error, and its own health check still passes): the check stands directly in front of the engine so
that no other producer of tasks can pass it by.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from runtime.chat_template import RESERVED_KWARGS
from schemas.structured import MAX_BYTES
from schemas.text import prompts_of
from workers.engine import GenerateRequest, RequestRejectedError

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
INT64 = range(-(2**63), 2**63)
SERVER_OWNED = (
    *("priority", "cache_salt", "request_id", "session_id", "kv_transfer_params", "ec_transfer_params"),
    *("vllm_xargs", "chat_template", "media_io_kwargs", "mm_processor_kwargs", "prompt_embeds", "echo"),
    *("documents", "add_generation_prompt", "continue_final_message", "prompt_logprobs", "use_beam_search"),
)


def _integer(value: Any) -> bool:
    return type(value) is int and value in INT64


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _boolean(value: Any) -> bool:
    return type(value) is bool


def _text(value: Any) -> bool:
    return type(value) is str


def _object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(check(item) for item in value)


def _stop(value: Any) -> bool:
    return (_text(value) and bool(value)) or (_list_of(_text)(value) and all(value))


def _token(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _prompt(value: Any) -> bool:
    return _text(value) or (_list_of(_token)(value) and bool(value))


def _logit_bias(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        type(key) is str and key.isascii() and key.isdigit() and _number(bias) for key, bias in value.items()
    )


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "min_tokens", "n", "seed", "top_k", "top_logprobs"),
        (_integer, "a 64-bit integer"),
    ),
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
        (_number, "a finite number"),
    ),
    **dict.fromkeys(
        ("ignore_eos", "stream", "skip_special_tokens", "include_stop_str_in_output", "parallel_tool_calls"),
        (_boolean, "a boolean"),
    ),
    **dict.fromkeys(
        ("response_format", "structured_outputs", "chat_template_kwargs", "stream_options"),
        (_object, "an object"),
    ),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), (_list_of(_token), "a list of token ids")),
    **dict.fromkeys(("messages", "tools"), (_list_of(_object), "a list of objects")),
    "bad_words": (_list_of(_text), "a list of strings"),
    "logit_bias": (_logit_bias, "an object of token ids and finite numbers"),
    "stop": (_stop, "a string or a list of strings, none of them empty"),
    "prompt": (_prompt, "a string or a list of token ids"),
    "reasoning_effort": (_text, "a string"),
}


def check(request: GenerateRequest) -> None:
    """Refuse what must not reach an engine. Raises: RequestRejectedError naming the field."""
    if not _text(request.request_id) or not request.request_id:
        raise RequestRejectedError("request_id must be a string", "request_id", "invalid_type")
    if request.cache_salt is not None and not (_text(request.cache_salt) and request.cache_salt):
        raise RequestRejectedError("cache_salt must be a string", "cache_salt", "invalid_type")
    if not _integer(request.max_output_tokens) or request.max_output_tokens < 1:
        raise RequestRejectedError("max_tokens must be a positive integer", "max_tokens", "invalid_type")
    for token in request.emitted_token_ids:
        if not _token(token):
            raise RequestRejectedError("emitted token ids must be integers", "emitted_token_ids")
    for header, value in (request.trace_headers or {}).items():
        if not _text(header) or not _text(value):
            raise RequestRejectedError(f"trace header {header!r} must be a string", "trace_headers")
    if request.url not in (CHAT, COMPLETIONS):
        raise RequestRejectedError(f"the engine can't run {request.url!r}", "url", "invalid_value")
    body = request.body
    needed = "messages" if request.url == CHAT else "prompt"
    if body.get(needed) is None:
        raise RequestRejectedError(f"{needed} is missing", needed, "missing_required_parameter")
    for name in SERVER_OWNED:
        if body.get(name) is not None and body[name] is not False:
            raise RequestRejectedError(f"{name} can't be set by a request", name, "unsupported_parameter")
    for name, value in body.items():
        if value is None:
            continue
        if rule := _FIELDS.get(name):
            valid, expected = rule
            if not valid(value):
                raise RequestRejectedError(f"{name} must be {expected}", name, "invalid_type")
    logprobs = body.get("logprobs")
    chat = request.url == CHAT
    if logprobs is not None and not (_boolean(logprobs) if chat else _integer(logprobs)):
        expected = "a boolean" if chat else "an integer"
        raise RequestRejectedError(f"logprobs must be {expected}", "logprobs", "invalid_type")
    if reserved := RESERVED_KWARGS & (body.get("chat_template_kwargs") or {}).keys():
        message = f"chat_template_kwargs can't set {', '.join(sorted(reserved))}"
        raise RequestRejectedError(message, "chat_template_kwargs", "invalid_value")
    _check_encodable(body)
    for name in ("response_format", "structured_outputs", "tools"):
        if body.get(name) is not None and len(orjson.dumps(body[name])) > MAX_BYTES:
            message = f"{name} is larger than {MAX_BYTES} bytes"
            raise RequestRejectedError(message, name, "invalid_value")


def _check_encodable(body: Mapping[str, Any]) -> None:
    """Lone surrogates, non-string keys, and depth: none of them survive the way to an engine core."""
    try:
        orjson.dumps(body)
    except TypeError:
        for name, value in body.items():
            try:
                orjson.dumps(value)
            except TypeError as error:
                message = f"{name} can't be encoded: {error}"
                raise RequestRejectedError(message, str(name), "invalid_value") from error
        raise RequestRejectedError("the body can't be encoded", None, "invalid_value") from None


def choices(body: Mapping[str, Any]) -> int:
    """How many choices a body asks for, over all its prompts."""
    n = body.get("n")
    prompt = body.get("prompt")
    return (1 if n is None else int(n)) * (1 if prompt is None else len(prompts_of(prompt)))


def stops(body: Mapping[str, Any]) -> list[str]:
    """A body's stop strings."""
    stop = body.get("stop")
    if stop is None:
        return []
    return [stop] if isinstance(stop, str) else list(stop)


def top_logprobs(url: str, body: Mapping[str, Any]) -> int | None:
    """How many alternatives a token's logprobs list; None: no logprobs asked for."""
    if url == CHAT:
        return int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
    count = body.get("logprobs")
    return None if count is None else int(count)
