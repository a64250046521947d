"""Chat completion objects out: the whole answer, and the pieces of a stream.

Chunks are put together from bytes: a stream's `choices` are encoded once by the worker, and the API only
wraps them, since at full load this is the work done most often.

Source: OpenAI's chat.completion and chat.completion.chunk objects.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson

from core.pricing import Usage


def usage_object(usage: Usage) -> dict[str, Any]:
    """Build OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclass(slots=True)
class ChoiceSoFar:
    """One choice as its deltas add up."""

    text: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: dict[str, Any]) -> None:
        """Take one item of a delta's `choices`."""
        self.text.append(delta["delta"].get("content", ""))
        if delta.get("logprobs"):
            self.logprobs = (self.logprobs or []) + delta["logprobs"]["content"]
        if delta["finish_reason"] is not None:
            self.finish_reason = delta["finish_reason"]
            self.stop_reason = delta.get("stop_reason")


def chat_completion(
    *,
    task_id: str,
    created: int,
    model: str,
    fingerprint: str,
    choices: dict[int, ChoiceSoFar],
    usage: Usage,
) -> bytes:
    """Encode a chat.completion object."""
    return orjson.dumps(
        {
            "id": completion_id(task_id),
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
                    "logprobs": None
                    if choice.logprobs is None
                    else {"content": choice.logprobs, "refusal": None},
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                }
                for index, choice in sorted(choices.items())
            ],
            "usage": usage_object(usage),
            "system_fingerprint": fingerprint,
        }
    )


def completion_id(task_id: str) -> str:
    """Id of a chat completion, told from its task's."""
    return "chatcmpl-" + task_id.removeprefix("task_")


def choice_delta(
    index: int,
    text: str,
    logprobs: list[dict[str, Any]] | None,
    finish_reason: str | None,
    stop_reason: int | str | None,
) -> dict[str, Any]:
    """Build one item of a chunk's `choices`."""
    delta: dict[str, Any] = {
        "index": index,
        "delta": {"content": text} if text or finish_reason is None else {},
        "logprobs": None if logprobs is None else {"content": logprobs, "refusal": None},
        "finish_reason": finish_reason,
    }
    if stop_reason is not None:
        delta["stop_reason"] = stop_reason
    return delta


class ChunkEncoder:
    """Frames of one chat stream, from the `choices` bytes of task.delta events."""

    def __init__(self, *, task_id: str, created: int, model: str, include_usage: bool) -> None:
        head = {
            "id": completion_id(task_id),
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._head = b"data: " + orjson.dumps(head)[:-1] + b","
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def opening(self, n: int) -> bytes:
        """Frames that name the role of each choice."""
        role = b'{"role":"assistant","content":""}'
        choice = b'"choices":[{"index":%d,"delta":' + role + b',"logprobs":null,"finish_reason":null}]'
        return b"".join(self._head + choice % index + self._tail for index in range(n))

    def delta(self, data: bytes, usage: bytes | None = None) -> bytes:
        """Frame of a task.delta event's data, `{"choices":[…],"tokens":[prompt, output]}`."""
        inner = data[1 : data.rindex(b',"tokens":')]
        tail = self._tail if usage is None else b',"usage":' + usage + b"}\n\n"
        return self._head + inner + tail

    def usage(self, usage: bytes) -> bytes:
        """Frame with the whole usage and no choice."""
        return self._head + b'"choices":[],"usage":' + usage + b"}\n\n"


DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": ka\n"  # one newline: a comment block of its own is fatal to the Python client after an id
