"""What becomes of results: the lines as the API has them, or one answer a row, in the order of the input."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from cli.batch_work import State, Work


@dataclass(slots=True)
class Tally:
    """What was written."""

    lines: int = 0
    failed: int = 0
    missing: int = 0  # of a batch that was stopped before its input was looked at


def lines_out(work: Work, state: State, *, rows: bool, tally: Tally) -> Iterator[bytes]:
    """Yield the output file: result lines, or with `rows` one answer a row as JSON or CSV."""
    as_csv = rows and work.output.suffix.lower() == ".csv"
    if as_csv:
        yield _csv_line(["row", "output", "error"])
    for number, chunk in enumerate(state.chunks):
        before = tally.lines
        for line in _in_order(work, number):
            result = orjson.loads(line)
            failed = result["error"] is not None or result["response"]["status_code"] != 200
            tally.lines += 1
            tally.failed += failed
            if not rows:
                yield line
                continue
            row = int(result["custom_id"].removeprefix("row-"))
            text, error = (None, _error(result)) if failed else (_text(result), None)
            if as_csv:
                yield _csv_line([row, text, error])
            else:
                yield orjson.dumps({"row": row, "output": text, "error": error}) + b"\n"
        tally.missing += chunk.lines - (tally.lines - before)


def _in_order(work: Work, number: int) -> Iterator[bytes]:
    """The result lines of a chunk in the order of its requests; memory holds where each line stands."""
    places: dict[str, tuple[Path, int]] = {}
    files = [path for kind in ("output", "error") if (path := work.results(number, kind)).exists()]
    for path in files:
        with path.open("rb") as file:
            at = 0
            for line in file:
                places[orjson.loads(line)["custom_id"]] = path, at
                at += len(line)
    opened = {path: path.open("rb") for path in files}
    try:
        with work.input(number).open("rb") as requests:
            for request in requests:
                place = places.get(orjson.loads(request)["custom_id"])
                if place is not None:
                    opened[place[0]].seek(place[1])
                    yield opened[place[0]].readline()
    finally:
        for file in opened.values():
            file.close()


def _text(result: dict[str, Any]) -> str:
    choice = result["response"]["body"]["choices"][0]
    return str((choice.get("message") or choice).get("content") or choice.get("text") or "")


def _error(result: dict[str, Any]) -> str:
    error = result["error"] or result["response"]["body"].get("error") or {}
    return f"{error.get('code')}: {error.get('message')}"


def _csv_line(values: list[Any]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(values)
    return out.getvalue().encode()
