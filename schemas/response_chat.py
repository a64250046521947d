"""A response as the chat completion that answers it."""

from collections.abc import Sequence
from typing import Any

from schemas.chat import ChatCompletionRequest
from schemas.errors import RequestError
from schemas.requests import validate
from schemas.responses import ResponseCreate, TextFormat

# where a chat completion's field stands in the body of a response
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
_AS_THEY_ARE = (
    "chat_template_kwargs",
    *(
        "model",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "frequency_penalty",
    ),
    *(
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "min_tokens",
        "ignore_eos",
        "structured_outputs",
    ),
    *(
        "user",
        "safety_identifier",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "top_logprobs",
    ),
)


def chat_request(
    asked: ResponseCreate, earlier: Sequence[dict[str, Any]], items: Sequence[dict[str, Any]]
) -> ChatCompletionRequest:
    """Build the chat completion of a response; `earlier` are the messages of the conversation so far.

    Raises: RequestError naming the response's field.
    """
    instructions = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    body: dict[str, Any] = {name: getattr(asked, name) for name in _AS_THEY_ARE}
    body["messages"] = [*instructions, *earlier, *messages_of(items)]
    body["max_completion_tokens"] = asked.max_output_tokens
    body["logprobs"] = asked.logprobs or None
    if asked.text is not None:
        body["response_format"] = _format(asked.text.format)
        body["verbosity"] = asked.text.verbosity
    if asked.reasoning is not None:
        body["reasoning_effort"] = asked.reasoning.effort
    choice = asked.tool_choice
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    if asked.tools:
        body["tools"] = [_tool(tool) for tool in asked.tools]
        body["parallel_tool_calls"] = asked.parallel_tool_calls
    # without tools the clients' "auto" says nothing; what demands a call is refused
    if asked.tools or choice not in ("auto", "none"):
        body["tool_choice"] = choice
    try:
        return validate(
            ChatCompletionRequest, {name: value for name, value in body.items() if value is not None}
        )
    except RequestError as error:
        raise renamed(error) from error


def renamed(error: RequestError) -> RequestError:
    """The error of a chat completion with the name that its field has in a response."""
    if error.param is None:
        return error
    end = min((error.param.find(mark) for mark in ".[" if mark in error.param), default=len(error.param))
    head, rest = error.param[:end], error.param[end:]
    if head not in _NAMES:
        return error
    # places in `messages` are not those of `input`: instructions and the conversation so far come before
    param = _NAMES[head] if head == "messages" else _NAMES[head] + rest
    message = error.message.replace(error.param, param)
    return RequestError(error.status, message, error.code, param, error.headers)


def messages_of(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chat messages of items as `schemas.response_items` makes them."""
    messages: list[dict[str, Any]] = []
    thought: str | None = None  # goes with the assistant's next message
    open_turn = False  # what the assistant thought, said and called in one go is one message
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            thought = "".join(part["text"] for part in item["content"]) or None
            open_turn = False
            continue
        if kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        elif kind == "message" and item["role"] != "assistant":
            texts = [part["text"] for part in item["content"]]
            content = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
            messages.append({"role": item["role"], "content": content})
        else:
            if not open_turn or (kind == "message" and messages[-1].get("tool_calls")):
                messages.append({"role": "assistant"} | ({"reasoning": thought} if thought else {}))
                thought = None
            turn = messages[-1]
            if kind == "message":
                said = "".join(part.get("text", "") or part.get("refusal", "") for part in item["content"])
                turn["content"] = turn.get("content", "") + said
            else:
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                turn.setdefault("tool_calls", []).append(call)
        open_turn = kind == "function_call" or (kind == "message" and item["role"] == "assistant")
    return messages


def answered(message: dict[str, Any]) -> dict[str, Any]:
    """A chat completion's message as the next request sends it."""
    kept = {name: message[name] for name in ("content", "tool_calls", "reasoning") if message.get(name)}
    return {"role": "assistant", "content": ""} | kept


def _format(form: TextFormat | None) -> dict[str, Any] | None:
    if form is None:
        return None
    if form.type != "json_schema":
        return {"type": form.type}
    given = form.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
    return {"type": "json_schema", "json_schema": given}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters", "strict")
    return {
        "type": "function",
        "function": {name: tool[name] for name in names if tool.get(name) is not None},
    }
