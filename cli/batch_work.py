"""The folder beside an output file that says how far it is: whoever runs the same command again goes on there.

It holds the chunks of the input (a batch takes 50,000 requests), what each became, and goes when the output is whole.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

from cli.client import ClientError
from core.batches import MAX_LINES

_MAX_BYTES = 190 << 20  # of a chunk: below what the API takes of a batch's input


class Chunk(BaseModel):
    """One batch's share of the input."""

    lines: int
    key: str  # the batch is created under it, once
    file_id: str | None = None
    batch_id: str | None = None


class State(BaseModel):
    """What is written down."""

    asked: str  # digest of the input and of all that was asked for
    endpoint: str
    chunks: list[Chunk]


class Work:
    """The folder of one output file."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.folder = output.with_name(output.name + ".batch")
        self._file = self.folder / "state.json"

    def read(self, asked: str) -> State | None:
        """What was written down; None when nothing was. Raises: ClientError when it is of another command."""
        try:
            state = State.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ClientError(f"{self._file} can't be read; delete {self.folder} to begin anew") from error
        if state.asked != asked:
            raise ClientError(
                f"{self.folder} is of a batch with another input or other options: run that one to its end, "
                "or delete the folder (its batch goes on; `headrace batch list`)"
            )
        return state

    def begin(self, asked: str, endpoint: str, requests: Iterable[bytes]) -> State:
        """Write the input in chunks, and the state once all of them are there. Raises: ClientError."""
        self.discard()
        self.folder.mkdir(parents=True)
        chunks: list[Chunk] = []
        size = _MAX_BYTES + 1
        file = None
        try:
            for request in requests:
                if size + len(request) >= _MAX_BYTES or chunks[-1].lines >= MAX_LINES:
                    if file:
                        file.close()
                    file = self.input(len(chunks)).open("wb")
                    chunks.append(Chunk(lines=0, key=secrets.token_urlsafe(16)))
                    size = 0
                assert file is not None
                file.write(request + b"\n")
                size += len(request) + 1
                chunks[-1].lines += 1
        except BaseException:
            self.discard()
            raise
        finally:
            if file:
                file.close()
        if not chunks:
            self.discard()
            raise ClientError("the input holds no request")
        state = State(asked=asked, endpoint=endpoint, chunks=chunks)
        self.save(state)
        return state

    def save(self, state: State) -> None:
        """Write the state down, whole or not at all."""
        new = self._file.with_suffix(".new")
        new.write_text(state.model_dump_json(indent=1))
        new.replace(self._file)

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def input(self, number: int) -> Path:
        """A chunk's requests."""
        return self.folder / f"input-{number}.jsonl"

    def results(self, number: int, kind: str) -> Path:
        """A chunk's output or errors, once they are here."""
        return self.folder / f"{kind}-{number}.jsonl"

    def finish(self, lines: Iterable[bytes]) -> None:
        """Write the output, whole or not at all, and remove the folder."""
        new = self.folder / "output.new"
        with new.open("wb") as file:
            for line in lines:
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.output)
        self.discard()


def digest(file: Path, **options: Any) -> str:
    """A digest of a file and of options."""
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256")
    found.update(orjson.dumps(options, option=orjson.OPT_SORT_KEYS))
    return found.hexdigest()
