"""A task's events as a response's: a fold over the stored stream, so that every process counts the same numbers.

One event of the task makes any number of the response's, always the same ones; whoever resumes folds from the
beginning and leaves out what its cursor has. What the model begins anew (`task.restarted`) can't be taken back
here: the items so far are done as incomplete, and new ones follow at new places under new ids.

Source: OpenAI's API reference (streaming events of responses).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.response_items import item_id, output_text

Said = tuple[str, dict[str, Any]]  # type and fields of one event


@dataclass(slots=True)
class _Item:
    """An output item as its deltas add up."""

    kind: str
    id: str
    place: int  # output_index
    fields: dict[str, Any] = field(default_factory=dict)  # a call's id and name
    text: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    done: bool = False

    def wire(self, status: str) -> dict[str, Any]:
        item = {"id": self.id, "type": self.kind, "status": status, **self.fields}
        text = "".join(self.text)
        if self.kind == "message":
            parts = [] if status == "in_progress" else [output_text(text, self.logprobs)]
            return item | {"role": "assistant", "content": parts}
        if self.kind == "reasoning":
            parts = [] if status == "in_progress" else [{"type": "reasoning_text", "text": text}]
            return item | {"summary": [], "content": parts}
        return item | {"arguments": text}


class ResponseEvents:
    """The events of one response, numbered from 0."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self._sequence = -1
        self._items: list[_Item] = []  # since the last restart
        self._void = 0  # items before it
        self._restarts = 0
        self._started = False

    def numbered(self, said: Iterator[Said], after: int) -> Iterator[bytes]:
        """Encode events as frames; those up to the cursor are counted and left out."""
        for kind, fields in said:
            self._sequence += 1
            if self._sequence > after:
                data = orjson.dumps({"type": kind, "sequence_number": self._sequence, **fields})
                yield b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def opened(self, response: Mapping[str, Any]) -> Iterator[Said]:
        """What is said of an accepted response."""
        yield "response.created", {"response": response}
        yield "response.queued", {"response": response}

    def started(self, response: Mapping[str, Any]) -> Iterator[Said]:
        """What is said when it is worked on: the first time only, whatever becomes of that attempt."""
        if not self._started:
            self._started = True
            yield "response.in_progress", {"response": response}

    def restarted(self) -> Iterator[Said]:
        """Put aside what was said: the model begins anew."""
        if self._items:
            yield from self._finish("incomplete")
            self._void += len(self._items)
            self._restarts += 1
            self._items = []

    def delta(self, choice: Mapping[str, Any]) -> Iterator[Said]:
        """Take one item of a chat chunk's `choices`."""
        message = choice["delta"]
        if thought := message.get("reasoning"):
            yield from self._add("reasoning", thought)
        if text := message.get("content"):
            logprobs = (choice.get("logprobs") or {}).get("content") or []
            yield from self._add("message", text, logprobs)
        for call in message.get("tool_calls") or ():
            if call.get("id"):
                named = {"call_id": call["id"], "name": call["function"]["name"]}
                yield from self._open("function_call", named)
            if arguments := call["function"].get("arguments"):
                yield from self._extend(arguments)

    def ended(self, kind: str, response: dict[str, Any]) -> Iterator[Said]:
        """Say what was not said yet, then how it ended; the response's items get the ids they had here."""
        status = "completed" if kind == "response.completed" else "incomplete"
        yield from self._catch_up(response["output"])
        yield from self._finish(status)
        for item, known in zip(response["output"], self._items, strict=False):
            if item["type"] == known.kind:
                item["id"] = known.id
        yield kind, {"response": response}

    def _catch_up(self, output: Sequence[dict[str, Any]]) -> Iterator[Said]:
        # Text whose event was lost with its worker is in the answer: it is said now, as one delta.
        for place, item in enumerate(output):
            if place == len(self._items):
                named: dict[str, Any] = {name: item[name] for name in ("call_id", "name") if name in item}
                yield from self._open(item["type"], named)
            known = self._items[place]
            if known.kind != item["type"]:
                return
            whole, sent = _text_of(item), "".join(known.text)
            if place == len(self._items) - 1 and len(whole) > len(sent) and whole.startswith(sent):
                yield from self._extend(whole[len(sent) :])

    def _add(self, kind: str, text: str, logprobs: Sequence[Any] = ()) -> Iterator[Said]:
        if not self._items or self._items[-1].kind != kind:
            yield from self._open(kind, {})
        yield from self._extend(text, logprobs)

    def _open(self, kind: str, fields: dict[str, Any]) -> Iterator[Said]:
        yield from self._finish("completed")
        place = f"{len(self._items)}" + (f"r{self._restarts}" if self._restarts else "")
        item = _Item(kind, item_id(kind, self._response_id, place), self._void + len(self._items), fields)
        self._items.append(item)
        yield "response.output_item.added", {"output_index": item.place, "item": item.wire("in_progress")}
        if kind != "function_call":
            yield "response.content_part.added", self._at(item) | {"part": _part(kind, "")}

    def _extend(self, text: str, logprobs: Sequence[Any] = ()) -> Iterator[Said]:
        item = self._items[-1]
        item.text.append(text)
        if item.kind == "function_call":
            yield "response.function_call_arguments.delta", self._at(item) | {"delta": text}
        elif item.kind == "reasoning":
            yield "response.reasoning_text.delta", self._at(item) | {"delta": text}
        else:
            item.logprobs.extend(logprobs)
            yield "response.output_text.delta", self._at(item) | {"delta": text, "logprobs": logprobs}

    def _finish(self, status: str) -> Iterator[Said]:
        if not self._items or self._items[-1].done:
            return
        item = self._items[-1]
        item.done = True
        text = "".join(item.text)
        if item.kind == "function_call":
            called = {"arguments": text, "name": item.fields["name"]}
            yield "response.function_call_arguments.done", self._at(item) | called
        else:
            if item.kind == "message":
                yield "response.output_text.done", self._at(item) | {"text": text, "logprobs": item.logprobs}
            else:
                yield "response.reasoning_text.done", self._at(item) | {"text": text}
            yield (
                "response.content_part.done",
                self._at(item) | {"part": _part(item.kind, text, item.logprobs)},
            )
        yield "response.output_item.done", {"output_index": item.place, "item": item.wire(status)}

    @staticmethod
    def _at(item: _Item) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": item.id, "output_index": item.place}
        return place if item.kind == "function_call" else place | {"content_index": 0}


def _part(kind: str, text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    return output_text(text, logprobs) if kind == "message" else {"type": "reasoning_text", "text": text}


def _text_of(item: Mapping[str, Any]) -> str:
    return str(item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
