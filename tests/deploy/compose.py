"""compose.yaml as a compose implementation reads it: variables filled in, nothing else changed."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "compose.yaml"

# What .env must hold: the two that make-secrets writes, and the two that only the operator knows.
GIVEN = {
    "DEPLOY_UID": "10001",
    "DEPLOY_GID": "10001",
    "DEPLOY_MODELS": "./models",
    "HEADRACE_MODEL": "org/model",
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class MissingVariableError(KeyError):
    """A variable without a default is not given."""


def fill_in(text: str, given: Mapping[str, str]) -> str:
    """Replace `$$`, `${NAME}`, `${NAME:-default}` and `${NAME:?message}`, the only forms we use.

    Raises: MissingVariableError; ValueError for any other use of `$`, which compose would refuse or misread.
    """
    out: list[str] = []
    at = 0
    while (dollar := text.find("$", at)) >= 0:
        out.append(text[at:dollar])
        if text.startswith("$$", dollar):
            out.append("$")
            at = dollar + 2
            continue
        name = _NAME.match(text, dollar + 2)
        if not text.startswith("${", dollar) or name is None:
            raise ValueError(f"{text!r}: a lone $")
        end = _closing(text, name.end())
        out.append(_value(name[0], text[name.end() : end], given))
        at = end + 1
    return "".join([*out, text[at:]])


def _closing(text: str, at: int) -> int:
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at - 1


def _value(name: str, rest: str, given: Mapping[str, str]) -> str:
    if found := given.get(name):
        return found
    if rest.startswith(":-"):
        return fill_in(rest[2:], given)
    raise MissingVariableError(f"{name}: {rest}")


def _filled_in(node: Any, given: Mapping[str, str]) -> Any:
    if isinstance(node, str):
        return fill_in(node, given)
    if isinstance(node, list):
        return [_filled_in(item, given) for item in node]
    if isinstance(node, dict):
        return {key: _filled_in(value, given) for key, value in node.items()}
    return node


def validate(document: dict[str, Any]) -> None:
    """Check against the compose specification's own schema, which check-jsonschema carries.

    Raises: jsonschema.ValidationError.
    """
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validators.validator_for(schema)(schema).validate(document)


@cache
def written() -> dict[str, Any]:
    """The file with its merges done and its variables as they stand."""
    document: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return document


@cache
def deployed() -> dict[str, Any]:
    """The file as it takes effect with nothing but GIVEN."""
    document: dict[str, Any] = _filled_in(written(), GIVEN)
    return document


def services() -> dict[str, dict[str, Any]]:
    """All services by name."""
    found: dict[str, dict[str, Any]] = deployed()["services"]
    return found


def headrace_services() -> dict[str, dict[str, Any]]:
    """The services that run our own images."""
    return {name: service for name, service in services().items() if "build" in service}


def is_one_shot(service: Mapping[str, Any]) -> bool:
    """Whether it is to end by itself."""
    return bool(service["restart"] == "no")


def seconds(duration: str) -> float:
    """Of a compose duration such as 1m30s."""
    units = {"h": 3600, "m": 60, "s": 1}
    parts = re.findall(r"(\d+)([hms])", duration)
    assert "".join(number + unit for number, unit in parts) == duration
    return sum(int(number) * units[unit] for number, unit in parts)


def all_commands() -> Iterator[tuple[str, list[str]]]:
    """Each command of ours in the file, health checks included, as (service, words)."""
    for name, service in headrace_services().items():
        yield name, service["command"]
        if test := service.get("healthcheck", {}).get("test"):
            yield name, test[1:] if test[0] == "CMD" else ["sh", "-c", *test[1:]]
