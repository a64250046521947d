"""docs/guarantees.md names tests: they exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
NAMED = sorted(
    set(re.findall(r"`(\w+/test_\w+\.py(?:::\w+)?)`", (TESTS.parent / "docs/guarantees.md").read_text()))
)


def test_the_page_names_tests() -> None:
    assert len(NAMED) >= 20


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_the_page_names_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert re.search(rf"^(async )?def {function or 'test_'}", (TESTS / file).read_text(), re.MULTILINE)
