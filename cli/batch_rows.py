"""What a batch is made of: a file of requests as it is, or rows of text, CSV, Parquet or JSON and a template."""

import csv
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from cli.client import CHAT_URL, ClientError


class InputError(ClientError):
    """The input can't be read as what it is said to be; names the row."""


@dataclass(frozen=True, slots=True)
class Prompting:
    """How rows become requests."""

    template: str
    model: str
    max_tokens: int | None
    system: str | None
    temperature: float | None

    def body(self, prompt: str) -> dict[str, Any]:
        """The request of one row."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*messages, {"role": "user", "content": prompt}],
        }
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.temperature is not None:
            body["temperature"] = self.temperature
        return body


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield a file's rows as columns; a line of text has one column, `text`. Raises: InputError."""
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise InputError(
            f"{file.name}: rows are read of {', '.join(_READERS)}, not of {file.suffix or 'this'}"
        )
    try:
        yield from reader(file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file.name} can't be read: {error}") from error


def requests_of(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file of requests, blank ones left out. Raises: InputError."""
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines):
                text = (line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line).strip()
                if text:
                    yield text
    except OSError as error:
        raise InputError(f"{file.name} can't be read: {error}") from error


def requests_from(file: Path, prompting: Prompting) -> Iterator[bytes]:
    """Yield one request a row, `row-0` and so on. Raises: InputError naming the row and the column."""
    fields = _fields(prompting.template)
    for number, row in enumerate(read_rows(file)):
        missing = [name for name in fields if row.get(name) is None]
        if missing:
            raise InputError(f"row {number} has no {missing[0]!r}; there are {', '.join(map(str, row))}")
        prompt = string.Formatter().vformat(prompting.template, (), row)
        yield orjson.dumps(
            {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": CHAT_URL,
                "body": prompting.body(prompt),
            }
        )


def _fields(template: str) -> set[str]:
    """The columns that a template names. Raises: InputError for one that is no template."""
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise InputError(f"--template: {error}; write a brace of its own as {{{{ or }}}}") from error
    for name in names:
        if not name or not name.replace("_", "a").replace(" ", "a").replace("-", "a").isalnum():
            raise InputError(f"--template: {{{name}}} names no column; such as {{text}} does")
    if not names:
        raise InputError("--template names no column, so every prompt would be the same")
    return names


def _text(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8-sig") as lines:
        for line in lines:
            if line.strip():
                yield {"text": line.rstrip("\r\n")}


def _csv(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        yield from csv.DictReader(lines)


def _json(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(requests_of(file)):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"row {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"row {number} is not a JSON object")
        yield row


def _parquet(file: Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError(
            "Parquet needs pyarrow: install the extra, `pip install 'headrace[parquet]'`"
        ) from error
    try:
        with ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1000):
                yield from batch.to_pylist()
    except ArrowInvalid as error:
        raise InputError(f"{file.name} is no Parquet file: {error}") from error


_READERS = {".txt": _text, ".csv": _csv, ".jsonl": _json, ".parquet": _parquet}
