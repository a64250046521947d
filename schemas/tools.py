"""Tools: functions that a model may call, which of them it must, and calls it made."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from schemas.strict import NonEmpty, Strict
from schemas.structured import Schema

FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Function(Strict):
    """A function that can be called."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Strict):
    """The only kind of tool that is served."""

    type: Literal["function"]
    function: Function


class FunctionChoice(Strict):
    """A function by its name."""

    name: FunctionName


class NamedChoice(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: FunctionChoice


Tools = Annotated[list[Tool], Field(min_length=1, max_length=128)]
ToolChoice = Literal["none", "auto", "required"] | NamedChoice


class FunctionCall(Strict):
    """What was called, and with which arguments (JSON text, as the model wrote it)."""

    name: NonEmpty
    arguments: str


class ToolCall(Strict):
    """A call in an assistant's turn."""

    id: NonEmpty
    type: Literal["function"]
    function: FunctionCall
