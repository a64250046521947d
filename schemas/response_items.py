"""Items: what a response is asked with and what it answers with. Checked here once, then plain JSON objects.

Source: OpenAI's API reference (input item list, output items).
"""

from typing import Any, Literal, Self

from pydantic import model_validator

from schemas.responses import Name, read_variant
from schemas.strict import Strict, clash

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Strict):
    """A piece of what was said to the model."""

    type: Literal["input_text", "text"]
    text: str


class OutputText(Strict):
    """A piece of what the model said; annotations and log probabilities are not sent to it again."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Refusal(Strict):
    """A refusal of the model's."""

    type: Literal["refusal"]
    refusal: str


class ReasoningText(Strict):
    """A piece of what the model thought."""

    type: Literal["reasoning_text"]
    text: str


Part = InputText | OutputText | Refusal
_SAID: dict[str, type[Part]] = {"input_text": InputText, "text": InputText}
_ANSWERED: dict[str, type[Part]] = {**_SAID, "output_text": OutputText, "refusal": Refusal}


class Message(Strict):
    """One turn; of the assistant's, an earlier answer."""

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[dict[str, Any]]
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


class FunctionCall(Strict):
    """A call that the model asked for."""

    type: Literal["function_call"]
    call_id: str
    name: Name
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionCallOutput(Strict):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[dict[str, Any]]
    id: str | None = None
    status: Status | None = None


class ReasoningItem(Strict):
    """What the model thought before it answered."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] | None = None
    content: list[dict[str, Any]] | None = None
    encrypted_content: None = None
    status: Status | None = None

    @model_validator(mode="after")
    def _in_words(self) -> Self:
        if self.summary:
            raise clash("summary", "is not supported")
        return self


Item = Message | FunctionCall | FunctionCallOutput | ReasoningItem
_ITEMS: dict[str, type[Item]] = {
    "message": Message,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": ReasoningItem,
}
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def item_id(kind: str, response_id: str, place: str) -> str:
    """Id of an item told from its response's: the same on every process."""
    return f"{_PREFIXES[kind]}_{response_id.partition('_')[2]}{place}"


def read_items(given: str | list[dict[str, Any]], response_id: str) -> list[dict[str, Any]]:
    """Check a response's input and bring it into the form in which it is listed. Raises: RequestError."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items = []
    for i, one in enumerate(given):
        where = f"input[{i}]"
        item = read_variant(_ITEMS, one, where, default="message" if "role" in one else "")
        wire: dict[str, Any] = {"id": item.id or item_id(item.type, response_id, f"i{i}")}
        wire |= {"type": item.type, "status": item.status or "completed"}
        if isinstance(item, Message):
            wire |= {"role": item.role, "content": _parts(item.content, item.role, f"{where}.content")}
        elif isinstance(item, FunctionCall):
            wire |= {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        elif isinstance(item, FunctionCallOutput):
            output = item.output
            if not isinstance(output, str):
                output = "".join(part["text"] for part in _parts(output, "user", f"{where}.output"))
            wire |= {"call_id": item.call_id, "output": output}
        else:
            content = [
                read_variant({"reasoning_text": ReasoningText}, part, f"{where}.content[{j}]").model_dump()
                for j, part in enumerate(item.content or ())
            ]
            wire |= {"summary": [], "content": content}
        items.append(wire)
    return items


def _parts(content: str | list[dict[str, Any]], role: str, where: str) -> list[dict[str, Any]]:
    answered = role == "assistant"
    if isinstance(content, str):
        content = [{"type": "output_text" if answered else "input_text", "text": content}]
    kinds = _ANSWERED if answered else _SAID
    parts: list[dict[str, Any]] = []
    for j, part in enumerate(content):
        read = read_variant(kinds, part, f"{where}[{j}]")
        if isinstance(read, Refusal):
            parts.append({"type": "refusal", "refusal": read.refusal})
        elif answered:
            parts.append(output_text(read.text))
        else:
            parts.append({"type": "input_text", "text": read.text})
    return parts


def output_text(text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    """A piece of the model's text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def output_items(
    message: dict[str, Any], logprobs: list[Any] | None, response_id: str, status: str
) -> list[dict[str, Any]]:
    """The items of a chat completion's message, in the order in which a stream tells them."""
    items: list[dict[str, Any]] = []

    def add(kind: str, **fields: Any) -> None:
        items.append(
            {"id": item_id(kind, response_id, str(len(items))), "type": kind, "status": status, **fields}
        )

    if thought := message.get("reasoning"):
        add("reasoning", summary=[], content=[{"type": "reasoning_text", "text": thought}])
    calls = message.get("tool_calls") or []
    if message.get("content") or not calls:
        content = [output_text(message.get("content") or "", logprobs)]
        add("message", role="assistant", content=content)
    for call in calls:
        function = call["function"]
        add("function_call", call_id=call["id"], name=function["name"], arguments=function["arguments"])
    return items
