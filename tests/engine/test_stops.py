"""Stop strings are found wherever the tokens break, and ids never part from their text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.stops import StopScanner


def scan(pieces: list[str], stops: list[str], **options: int) -> tuple[str, list[int], str | None]:
    """Push pieces as tokens 0, 1, ...; check at every return that the ids spell the text."""
    scanner = StopScanner(stops, **options)  # type: ignore[arg-type]
    text, ids = "", list[int]()
    for number, piece in enumerate(pieces):
        got = scanner.push(piece, [number], None)
        text, ids = text + got.text, ids + got.token_ids
        if got.stop is not None:
            return text, ids, got.stop
        assert "".join(pieces[: len(ids)]) == text
        assert ids == list(range(len(ids)))
    got = scanner.flush()
    return text + got.text, ids + got.token_ids, None


@given(
    st.lists(st.text("ab€", max_size=3), max_size=12),
    st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3),
)
def test_the_text_ends_before_the_first_stop_string_however_it_is_cut(
    pieces: list[str], stops: list[str]
) -> None:
    whole = "".join(pieces)
    ends = [(whole.index(stop), stop) for stop in stops if stop in whole]
    text, ids, found = scan(pieces, stops)
    if not ends:
        assert (text, ids, found) == (whole, list(range(len(pieces))), None)
        return
    # The one that is complete first ends the text: a longer one begun before it is still open then
    assert found in stops
    assert whole.startswith(text + found)
    assert not any(stop in text for stop in stops)


def test_half_a_character_waits_for_the_rest_of_it() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("a", [1], None).token_ids == [1]
    assert scanner.push("", [2], None).token_ids == []
    assert scanner.push("", [3], None).token_ids == []
    assert scanner.push("🎉", [4], None)[:2] == ("🎉", [2, 3, 4])


def test_half_a_character_after_a_held_beginning_is_not_sent_with_it() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("E", [1], None).token_ids == []
    assert scanner.push("", [2], None).token_ids == []
    assert scanner.push("🎉", [3], None)[:2] == ("E🎉", [1, 2, 3])


def test_the_stop_string_can_be_kept() -> None:
    assert scan(["ab", "cd", "ef"], ["cde"], include=True)[0] == "abcde"


@pytest.mark.parametrize(("exempt", "text"), [(0, ""), (1, "x"), (2, "xx"), (9, "xxxx")])
def test_a_stop_string_counts_only_after_the_exempt_tokens(exempt: int, text: str) -> None:
    assert scan(["x"] * 4, ["x"], exempt_tokens=exempt)[0] == text


def test_a_very_long_stop_string_costs_no_more_than_its_beginnings() -> None:
    stop = "a" * 4000 + "b"
    text, ids, found = scan(["a"] * 500, [stop])
    assert (text, len(ids), found) == ("a" * 500, 500, None)
