"""Output of a given form: OpenAI's `response_format` and vLLM's `structured_outputs`, bounded.

Compiling a grammar stalls every request of an engine, so what costs it much is bounded. Seconds by xgrammar, as
measured: an enum of 20,000 values 7, an object with 1,600 optional properties 12 (with 400: 0.2), a pattern of 9,000
characters 6.5, one with `.{0,2000}` twice 3.3 (with 200: 0.04).
"""

import re
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from schemas.strict import NonEmpty, Strict, clash

MAX_BYTES = 64 * 1024  # of a schema or grammar as JSON
MAX_DEPTH = 32
MAX_VALUES = 5_000  # of a schema: names, numbers, strings, all in it
MAX_REPEAT = 10_000  # minLength, maxItems and their kind: a grammar spells repetitions out
MAX_OPTIONAL = 400  # properties of one object that may be left out: their orders are spelled out
MAX_PATTERN = 1_000  # characters of a regular expression
MAX_PATTERN_REPEAT = 500
_REPETITION = re.compile(r"\{(\d*),?(\d*)\}")
_REPEATS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains"}
)


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema that is fit to be compiled. Raises: ValueError saying what it exceeds."""
    level: list[dict[str, Any] | list[Any]] = [schema]
    count = depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"a schema is at most {MAX_DEPTH} levels deep")
        inner: list[Any] = []
        for value in level:
            inner += value.values() if isinstance(value, dict) else value
            if isinstance(value, dict):
                _check_object(value)
        count += len(inner)
        if count > MAX_VALUES:
            raise ValueError(f"a schema holds at most {MAX_VALUES} values")
        level = [value for value in inner if isinstance(value, dict | list)]
    if len(orjson.dumps(schema)) > MAX_BYTES:
        raise ValueError(f"a schema has at most {MAX_BYTES} bytes")
    return schema


def _check_object(schema: dict[str, Any]) -> None:
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        optional = len(properties) - (len(required) if isinstance(required, list) else 0)
        if optional > MAX_OPTIONAL:
            raise ValueError(f"at most {MAX_OPTIONAL} properties of an object may be left out: require more")
    if isinstance(schema.get("pattern"), str):
        bounded_pattern(schema["pattern"])
    for name in _REPEATS & schema.keys():
        if isinstance(schema[name], int | float) and schema[name] > MAX_REPEAT:
            raise ValueError(f"{name} is at most {MAX_REPEAT}")


def bounded_pattern(pattern: str) -> str:
    """Return a regular expression that is fit to be compiled. Raises: ValueError saying what it exceeds."""
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"a regular expression has at most {MAX_PATTERN} characters")
    counts = [int(count) for found in _REPETITION.findall(pattern) for count in found if count]
    if max(counts, default=0) > MAX_PATTERN_REPEAT:
        raise ValueError(f"a regular expression repeats at most {MAX_PATTERN_REPEAT} times")
    return pattern


Schema = Annotated[dict[str, Any], AfterValidator(bounded)]


class JsonSchema(Strict):
    """The schema of a structured answer."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """Free text, any JSON, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_present(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema, and is needed there")
        return self


class StructuredOutputs(Strict):
    """vLLM's forms: one of JSON of a schema, any JSON object, a regular expression, a choice, or a grammar."""

    json_: Schema | None = Field(default=None, alias="json")
    json_object: Literal[True] | None = None
    regex: Annotated[NonEmpty, AfterValidator(bounded_pattern)] | None = None
    choice: Annotated[list[NonEmpty], Field(min_length=1, max_length=1_000)] | None = None
    grammar: Annotated[NonEmpty, Field(max_length=MAX_BYTES // 4)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = (self.json_, self.json_object, self.regex, self.choice, self.grammar)
        if sum(one is not None for one in given) != 1:
            raise ValueError("give one of json, json_object, regex, choice, grammar")
        if self.choice and sum(map(len, self.choice)) > MAX_BYTES:
            raise clash("choice", f"has at most {MAX_BYTES} characters")
        return self
