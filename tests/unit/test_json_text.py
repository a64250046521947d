"""JSON in which no object has a key twice."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.json_text import DuplicateKeyError, parse

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [":", '":', "a:b", "\\"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_what_has_no_key_twice_is_read_however_it_is_written(
    value: Any, ascii: bool, indent: int | None
) -> None:
    assert parse(json.dumps(value, ensure_ascii=ascii, indent=indent).encode()) == value


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3), VALUES, VALUES, st.booleans(), st.data())
def test_a_key_that_stands_twice_is_found_wherever_it_is(
    within: dict[str, Any], first: Any, beside: Any, ascii: bool, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(sorted(within)))
    escaped = data.draw(st.booleans())
    name = (
        "".join(f"\\u{ord(one):04x}" for one in key) if escaped and key.isascii() else json.dumps(key)[1:-1]
    )
    twice = f'{{"{name}": {json.dumps(first)}, ' + json.dumps(within, ensure_ascii=ascii)[1:]
    with pytest.raises(DuplicateKeyError) as raised:
        parse(f'{{"beside": {json.dumps(beside)}, "deep": [1, {twice}]}}'.encode())
    assert raised.value.key == key


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', r'{"a": "\ud800"}', '{"a"', "[" * 2000, '{"a":' * 300 + "1" + "}" * 300]
)
def test_what_is_no_json_or_nested_without_end_is_refused(text: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        parse(text.encode())
