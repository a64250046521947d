"""Answers as each text route puts them: the pieces of a stream, and the whole that they add up to.

A worker encodes a stream's `choices` once, in the form of the task's route; the API only wraps them
(`schemas.chunks`), since at full load this is the work done most often.

Source: OpenAI's chat.completion, chat.completion.chunk and text_completion objects; `reasoning` and `stop_reason`
are vLLM's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from core.pricing import Usage


def usage_object(usage: Usage, reasoning_tokens: int | None = None) -> dict[str, Any]:
    """Build OpenAI's `usage`; it says nothing of reasoning where that is not known."""
    told: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if reasoning_tokens is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return told


@dataclass(slots=True)
class Piece:
    """What one choice gained since its last delta."""

    text: str = ""
    logprobs: list[dict[str, Any]] | None = None  # chat `logprobs.content` items
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)  # chat delta items, one a call

    def add_tool_call(self, item: Mapping[str, Any]) -> None:
        """Join a delta's `tool_calls` item to the one of the same call."""
        for known in self.tool_calls:
            if known["index"] == item["index"]:
                known["function"]["arguments"] += item["function"]["arguments"]
                return
        self.tool_calls.append({**item, "function": dict(item["function"])})


class Choice(Protocol):
    """One choice of one answer as its deltas add up."""

    finish_reason: str | None

    @property
    def text(self) -> str:
        """Its text so far, with its reasoning."""
        ...

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        """Build the item of a chunk's `choices` that brings a piece; it is not added yet."""
        ...

    def add(self, delta: Mapping[str, Any]) -> None:
        """Take such an item."""
        ...

    def item(self, index: int) -> dict[str, Any]:
        """Build the choice of the whole answer."""
        ...


class ChatChoice:
    """A choice of a chat completion."""

    __slots__ = ("_calls", "_logprobs", "_reasoning", "_stop_reason", "_text", "finish_reason")

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._logprobs: list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        """See Choice."""
        return "".join((*self._reasoning, *self._text))

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        """See Choice."""
        message: dict[str, Any] = {}
        if piece.reasoning:
            message["reasoning"] = piece.reasoning
        if piece.tool_calls:
            message["tool_calls"] = piece.tool_calls
        if piece.text or not (message or piece.finish_reason):
            message["content"] = piece.text
        delta: dict[str, Any] = {
            "index": index,
            "delta": message,
            "logprobs": None if piece.logprobs is None else {"content": piece.logprobs, "refusal": None},
            "finish_reason": piece.finish_reason,
        }
        if piece.stop_reason is not None:
            delta["stop_reason"] = piece.stop_reason
        return delta

    def add(self, delta: Mapping[str, Any]) -> None:
        """See Choice."""
        message = delta["delta"]
        if text := message.get("content"):
            self._text.append(text)
        if reasoning := message.get("reasoning"):
            self._reasoning.append(reasoning)
        for call in message.get("tool_calls", ()):
            self._add_call(call)
        if delta.get("logprobs"):
            self._logprobs = (self._logprobs or []) + delta["logprobs"]["content"]
        if delta["finish_reason"] is not None:
            self.finish_reason = delta["finish_reason"]
            self._stop_reason = delta.get("stop_reason")

    def _add_call(self, item: Mapping[str, Any]) -> None:
        function = item["function"]
        call = self._calls.get(item["index"])
        if call is None:
            named = {"name": function["name"], "arguments": function["arguments"]}
            self._calls[item["index"]] = {"id": item["id"], "type": item["type"], "function": named}
        else:
            call["function"]["arguments"] += function["arguments"]

    def item(self, index: int) -> dict[str, Any]:
        """See Choice."""
        text = "".join(self._text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not self._calls else None,
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        return {
            "index": index,
            "message": message,
            "logprobs": None if self._logprobs is None else {"content": self._logprobs, "refusal": None},
            "finish_reason": self.finish_reason,
            "stop_reason": self._stop_reason,
        }


class TextChoice:
    """A choice of a text completion."""

    __slots__ = ("_logprobs", "_offset", "_stop_reason", "_text", "finish_reason")

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._text: list[str] = []
        self._logprobs: dict[str, list[Any]] | None = None
        self._offset = 0  # characters of the tokens so far

    @property
    def text(self) -> str:
        """See Choice."""
        return "".join(self._text)

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        """See Choice."""
        delta: dict[str, Any] = {
            "index": index,
            "text": piece.text,
            "logprobs": None if piece.logprobs is None else _text_logprobs(piece.logprobs, self._offset),
            "finish_reason": piece.finish_reason,
        }
        if piece.stop_reason is not None:
            delta["stop_reason"] = piece.stop_reason
        return delta

    def add(self, delta: Mapping[str, Any]) -> None:
        """See Choice."""
        self._text.append(delta["text"])
        if more := delta.get("logprobs"):
            if self._logprobs is None:
                self._logprobs = {name: [] for name in more}
            for name, values in more.items():
                self._logprobs[name] += values
            if more["tokens"]:
                self._offset = more["text_offset"][-1] + len(more["tokens"][-1])
        if delta["finish_reason"] is not None:
            self.finish_reason = delta["finish_reason"]
            self._stop_reason = delta.get("stop_reason")

    def item(self, index: int) -> dict[str, Any]:
        """See Choice."""
        return {
            "index": index,
            "text": "".join(self._text),
            "logprobs": self._logprobs,
            "finish_reason": self.finish_reason,
            "stop_reason": self._stop_reason,
        }


def _text_logprobs(items: list[dict[str, Any]], offset: int) -> dict[str, list[Any]]:
    """The four lists of a text completion from chat's items; `offset`: where the first token begins."""
    offsets: list[int] = []
    for item in items:
        offsets.append(offset)
        offset += len(item["token"])
    return {
        "tokens": [item["token"] for item in items],
        "token_logprobs": [item["logprob"] for item in items],
        "top_logprobs": [{top["token"]: top["logprob"] for top in item["top_logprobs"]} for item in items],
        "text_offset": offsets,
    }


@dataclass(frozen=True)
class Form:
    """How a route's answers look."""

    prefix: str  # of ids
    object: str
    chunk_object: str
    choice: Callable[[], Choice]
    opens_with_role: bool  # a stream's first chunks name each choice's role

    def id_of(self, task_id: str) -> str:
        """Id of the answer of a task."""
        return self.prefix + task_id.removeprefix("task_")


FORMS: dict[str, Form] = {
    "/v1/chat/completions": Form("chatcmpl-", "chat.completion", "chat.completion.chunk", ChatChoice, True),
    "/v1/completions": Form("cmpl-", "text_completion", "text_completion", TextChoice, False),
}


def whole_answer(
    form: Form,
    *,
    task_id: str,
    created: int,
    model: str,
    fingerprint: str,
    choices: Mapping[int, Choice],
    usage: Usage,
    reasoning_tokens: int | None = None,
) -> bytes:
    """Encode a whole answer."""
    return orjson.dumps(
        {
            "id": form.id_of(task_id),
            "object": form.object,
            "created": created,
            "model": model,
            "choices": [choice.item(index) for index, choice in sorted(choices.items())],
            "usage": usage_object(usage, reasoning_tokens),
            "system_fingerprint": fingerprint,
        }
    )
