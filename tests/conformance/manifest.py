"""The manifest of required behaviours: what the API owes, where that is written, and which tests show it.

`required/*.toml`, one file a resource, holds `[id]` tables with `does` (one sentence) and either `docs` (words that
stand in docs/api.md) or `spec` (the operation or object of OpenAI's API reference). A test shows a behaviour by the
marker `@pytest.mark.shows("id")`, on itself or on one of its parameters.
"""

import ast
import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CONTRACT = TESTS.parent / "docs" / "api.md"
_REQUIRED = Path(__file__).parent / "required"


@dataclass(frozen=True)
class Behaviour:
    """One thing that clients may rely on."""

    id: str
    does: str
    docs: str | None = None
    spec: str | None = None


def behaviours() -> list[Behaviour]:
    """All of them. Raises: TypeError for a table with other keys, ValueError for an id used twice."""
    found: dict[str, Behaviour] = {}
    for file in sorted(_REQUIRED.glob("*.toml")):
        for name, table in tomllib.loads(file.read_text()).items():
            if name in found:
                raise ValueError(f"{file.name}: {name} stands in another file already")
            found[name] = Behaviour(name, **table)
    return list(found.values())


def plain(text: str) -> str:
    """Text without line breaks, for finding a sentence wherever its lines end."""
    return re.sub(r"\s+", " ", text)


def shown() -> dict[str, list[str]]:
    """Ids in `shows` markers of all tests, each with the places that it stands in."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(TESTS.rglob("test_*.py")):
        source = file.read_text()
        if "mark.shows(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "shows"
            ):
                for argument in node.args:
                    place = f"{file.relative_to(TESTS)}:{node.lineno}"
                    places[str(ast.literal_eval(argument))].append(place)
    return places
