"""From a request body to what vLLM's engine takes: prompt token ids and SamplingParams.

vLLM's own request classes do the conversion, so that a field means here what it means to `vllm serve`; what
they let through is checked again, because the engine core hangs for good on a value it can't decode.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMClientError
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from workers import body as bodies
from workers.engine import GenerateRequest, RequestRejectedError
from workers.stops import StopScanner
from workers.vllm_parsing import Parsers, Reader, Reading

_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stop_token_ids", "logit_bias"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens", "ignore_eos", "bad_words"),
    *("logprobs", "top_logprobs", "allowed_token_ids", "skip_special_tokens", "include_stop_str_in_output"),
    *("response_format", "structured_outputs"),
)
_CHAT = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort")


@dataclass(slots=True)
class Prepared:
    """One request, ready for the engine."""

    engine_input: dict[str, Any]
    params: SamplingParams
    prompt_tokens: int  # of the caller's prompt
    scanner: StopScanner | None  # stop strings are ours when there is one choice
    top: int  # alternatives a token's logprobs list
    finished: str | None = None  # a resumed task had already ended: the finish reason
    readers: list[Reader] | None = None  # by choice, where tool calls or reasoning are to be read
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)  # more of them, for `generate`


async def prepare(
    engine: AsyncLLM, request: GenerateRequest, defaults: Mapping[str, Any], parsers: Parsers
) -> Prepared:
    """Check, render and convert. `defaults`: sampling parameters of the model's generation config.

    Raises: RequestRejectedError, and vLLM's own exceptions (see `vllm_errors.translate`).
    """
    bodies.check(request)
    body, emitted = request.body, list(request.emitted_token_ids)
    extras = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
    chat = request.url == bodies.CHAT
    wire = _chat(body) if chat else _completion(body)
    reading: Reading | None = None
    param = "messages" if chat else "prompt"
    try:
        if isinstance(wire, ChatCompletionRequest):
            engine_input, template_kwargs = await _render_chat(engine, wire, extras)
            reading = parsers.of(wire, template_kwargs)
        else:
            engine_input = await _render_prompt(engine, wire, body["prompt"], extras)
    except (VLLMClientError, ValueError, TypeError) as error:
        if getattr(error, "parameter", None):
            raise
        raise RequestRejectedError(str(error), param, "invalid_value") from error
    ids = engine_input["prompt_token_ids"]
    length = engine.model_config.max_model_len
    if len(ids) >= length:
        message = f"the model's context length is {length} tokens, the prompt has {len(ids)}"
        raise RequestRejectedError(message, param, "context_length_exceeded")
    left = min(request.max_output_tokens, length - len(ids)) - len(emitted)
    params = wire.to_sampling_params(max(left, 1), dict(defaults))
    params.output_kind = RequestOutputKind.DELTA
    scanner = None
    if params.n == 1 and params.stop:
        exempt = max(0, params.min_tokens - len(emitted))
        scanner = StopScanner(params.stop, params.include_stop_str_in_output, exempt)
        params.stop = []
    elif request.tokens_at_once > 1:
        # not while we look for a stop string: what follows it would be generated
        params.stream_interval = request.tokens_at_once
    params.min_tokens = min(max(0, params.min_tokens - len(emitted)), max(left, 1))
    _check_decodable(params)
    finished = "length" if left < 1 else None
    if emitted:
        engine_input = {**engine_input, "prompt_token_ids": [*ids, *emitted]}
        engine_input.pop("prompt", None)
        if not params.ignore_eos and emitted[-1] in _end_tokens(engine, params):
            finished = "stop"
    return Prepared(
        engine_input,
        params,
        len(ids),
        scanner,
        bodies.top_logprobs(request.url, body) or 0,
        finished,
        reading.readers(ids) if reading else None,
        reading.engine_arguments(ids) if reading else {},
    )


def _given(body: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: body[name] for name in names if body.get(name) is not None}


def _chat(body: Mapping[str, Any]) -> ChatCompletionRequest:
    fields = _given(body, (*_SAMPLING, *_CHAT))
    if not fields.get("tools"):
        fields.pop("tools", None)
        fields.pop("tool_choice", None)
    messages = [dict(message) for message in body["messages"]]  # vLLM's validators write into them
    return ChatCompletionRequest(messages=messages, **fields)


def _completion(body: Mapping[str, Any]) -> CompletionRequest:
    fields = _given(body, _SAMPLING)
    fields.pop("top_logprobs", None)
    return CompletionRequest(prompt=body["prompt"], **fields)


async def _render_chat(
    engine: AsyncLLM, wire: ChatCompletionRequest, extras: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The engine's input, and the arguments that the template was given."""
    chat = wire.build_chat_params(None, "auto").with_defaults(
        {"tools": [tool.model_dump() for tool in wire.tools] if wire.tools else None}
    )
    tokenize = wire.build_tok_params(engine.model_config)
    _, (engine_input,) = await engine.renderer.render_chat_async(
        [wire.messages], chat, tokenize, prompt_extras=extras
    )
    rendered: dict[str, Any] = engine_input
    return rendered, chat.chat_template_kwargs


async def _render_prompt(
    engine: AsyncLLM, wire: CompletionRequest, prompt: str | list[int], extras: dict[str, Any]
) -> dict[str, Any]:
    parsed = parse_model_prompt(engine.model_config, prompt)
    tokenize = wire.build_tok_params(engine.model_config)
    (engine_input,) = await engine.renderer.render_cmpl_async([parsed], tokenize, prompt_extras=extras)
    rendered: dict[str, Any] = engine_input
    return rendered


def _check_decodable(params: SamplingParams) -> None:
    """The engine core's own decoding, done here, where a failure is an answer and not a hang."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        _, _, path = str(error).partition("$.")
        param = path.split("`")[0].split("[")[0] or None
        raise RequestRejectedError(f"the engine can't take it: {error}", param, "invalid_type") from error


def _end_tokens(engine: AsyncLLM, params: SamplingParams) -> set[int]:
    ends = set(params.stop_token_ids or ())
    eos = engine.renderer.get_eos_token_id()
    return ends if eos is None else {*ends, eos}
