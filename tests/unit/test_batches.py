"""What of a batch is pure: windows, lines in blocks, and their order."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batches import MAX_LINES, BatchState, end_of, parse_window
from core.lines import Line, LineSplitter, LineTooLongError
from schemas.batches import LineError, read_line
from services.validate_batch import Findings


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86400), ("90s", 90), ("5m", 300), ("30d", 2592000)])
def test_a_completion_window_is_a_number_with_its_unit(text: str, seconds: int) -> None:
    assert parse_window(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "0h", "-1h", "31d", "1.5h", " 24h", "٣h", "9999999d"])
def test_everything_else_is_no_window(text: str) -> None:
    with pytest.raises(ValueError, match="completion window"):
        parse_window(text)


def test_a_batch_ends_as_what_stopped_it() -> None:
    assert end_of(cancelled=False, unfinished_lines=0) is BatchState.COMPLETED
    assert end_of(cancelled=False, unfinished_lines=1) is BatchState.EXPIRED
    assert end_of(cancelled=True, unfinished_lines=0) is BatchState.CANCELLED


def split(content: bytes, block: int, splitter: LineSplitter) -> list[Line]:
    found: list[Line] = []
    for at in range(splitter.offset, len(content), block):
        found += splitter.feed(content[at : at + block])
    return found + list(splitter.end())


@given(
    st.lists(st.sampled_from([b"", b" ", b"a", b'{"b": 1}', b"c" * 30, b"\xef\xbb\xbfd"])),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 50),
    st.data(),
)
def test_lines_are_the_same_whatever_the_blocks_and_wherever_reading_goes_on(
    lines: list[bytes], ending: bytes, marked: bool, last: bool, block: int, data: st.DataObject
) -> None:
    content = (b"\xef\xbb\xbf" if marked else b"") + ending.join(lines) + (ending if last else b"")
    splitter = LineSplitter(1000)
    whole = split(content, block, splitter)
    assert splitter.offset == len(content)
    if not marked and not content.startswith(b"\xef"):
        wanted = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        assert [(line.number, line.text) for line in whole] == wanted
    if whole:
        place = data.draw(st.integers(0, len(whole) - 1))
        resumed = LineSplitter(1000, number=whole[place].number, offset=whole[place].end)
        assert split(content, block, resumed) == whole[place + 1 :]


def test_a_line_that_could_fill_memory_is_refused_before_its_end_is_seen() -> None:
    splitter = LineSplitter(100)
    assert [line.number for line in splitter.feed(b"a\n" * 3)] == [1, 2, 3]
    with pytest.raises(LineTooLongError) as caught:
        list(splitter.feed(b"x" * 101))
    assert caught.value.number == 4


def line(number: int, custom_id: str = "") -> Line:
    text = {"custom_id": custom_id or f"id-{number}", "url": "/v1/x", "body": {"model": "m"}}
    return Line(number, 0, json.dumps(text).encode())


def test_the_first_request_too_many_is_named_and_ends_the_reading() -> None:
    findings = Findings("/v1/x", frozenset({"m"}))
    for number in range(1, MAX_LINES + 1):
        findings.look(line(number))
    assert not findings.errors and not findings.enough
    findings.look(line(MAX_LINES + 1))
    assert [(one["code"], one["line"]) for one in findings.errors] == [("too_many_tasks", MAX_LINES + 1)]
    assert findings.enough


def test_of_many_mistakes_the_first_hundred_are_told() -> None:
    findings = Findings("/v1/x", frozenset({"m"}))
    for number in range(1, 500):
        findings.look(line(number, "always the same"))
        if findings.enough:
            break
    assert len(findings.errors) == 100
    assert findings.errors[-1]["line"] == 101


def test_a_method_may_be_left_out() -> None:
    assert read_line(line(1).text, "/v1/x").custom_id == "id-1"
    with pytest.raises(LineError):
        read_line(line(1).text, "/v1/y")
