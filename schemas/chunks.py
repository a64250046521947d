"""Frames of a streamed answer, put together from bytes that the worker encoded."""

import orjson

from schemas.completion import Form

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": ka\n"  # one newline: a comment block of its own is fatal to the Python client after an id


class ChunkEncoder:
    """Frames of one stream, from the `choices` bytes of task.delta events."""

    def __init__(self, form: Form, *, task_id: str, created: int, model: str, include_usage: bool) -> None:
        head = {
            "id": form.id_of(task_id),
            "object": form.chunk_object,
            "created": created,
            "model": model,
        }
        self._opens_with_role = form.opens_with_role
        self._head = b"data: " + orjson.dumps(head)[:-1] + b","
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def opening(self, choices: int, usage: bytes | None = None) -> bytes:
        """Frames that name the role of each choice, where the route has roles."""
        if not self._opens_with_role:
            return b""
        role = b'{"role":"assistant","content":""}'
        choice = b'"choices":[{"index":%d,"delta":' + role + b',"logprobs":null,"finish_reason":null}]'
        tail = self._tail if usage is None else b',"usage":' + usage + b"}\n\n"
        return b"".join(self._head + choice % index + tail for index in range(choices))

    def delta(self, data: bytes, usage: bytes | None = None) -> bytes:
        """Frame of a task.delta event's data, `{"choices":[…],"tokens":[prompt, output]}`."""
        inner = data[1 : data.rindex(b',"tokens":')]
        tail = self._tail if usage is None else b',"usage":' + usage + b"}\n\n"
        return self._head + inner + tail

    def usage(self, usage: bytes) -> bytes:
        """Frame with the whole usage and no choice."""
        return self._head + b'"choices":[],"usage":' + usage + b"}\n\n"
