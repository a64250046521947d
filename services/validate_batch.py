"""Read a batch's whole input once: is it one? Its lines' bodies are validated when they become tasks."""

import asyncio
import hashlib
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from core.batches import MAX_LINES, LineCode
from core.lines import Line, LineSplitter, LineTooLongError
from schemas.batches import LineError, read_line
from services.batch_input import read_blocks
from storage import batches, registry
from storage.autocommit import autocommit
from storage.batches import Batch
from storage.blobs import Blobs

_MAX_ERRORS = 100  # told of one file


@dataclass
class Findings:
    """What was found so far."""

    endpoint: str
    granted: frozenset[str]  # models
    total: int = 0
    model: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    _custom_ids: set[bytes] = field(default_factory=set)  # 16 bytes of a digest each

    @property
    def enough(self) -> bool:
        """Whether reading on would tell nothing new."""
        return len(self.errors) >= _MAX_ERRORS or self.total > MAX_LINES

    def look(self, line: Line) -> None:
        """Take one line."""
        self.total += 1
        if self.total > MAX_LINES:
            message = f"A batch has at most {MAX_LINES} requests."
            self.add(LineCode.TOO_MANY, message, line.number)
            return
        try:
            self._check(line)
        except LineError as error:
            self.add(error.code, str(error), line.number, error.param)

    def _check(self, line: Line) -> None:
        request = read_line(line.text, self.endpoint)
        digest = hashlib.blake2b(request.custom_id.encode(), digest_size=16).digest()
        if digest in self._custom_ids:
            message = f"The custom_id {request.custom_id!r} was used by an earlier line."
            raise LineError(LineCode.DUPLICATE, message, "custom_id")
        self._custom_ids.add(digest)
        if self.model is None:
            if request.model not in self.granted:
                message = f"The model {request.model!r} does not exist."
                raise LineError(LineCode.MODEL_NOT_FOUND, message, "body.model")
            self.model = request.model
        if request.model != self.model:
            message = f"The model {request.model!r} is not that of earlier lines, {self.model!r}."
            raise LineError(LineCode.MODEL_MISMATCH, message, "body.model")

    def add(self, code: LineCode, message: str, line: int | None, param: str | None = None) -> None:
        """Note an error."""
        if len(self.errors) < _MAX_ERRORS:
            self.errors.append({"code": code, "line": line, "message": message, "param": param})


async def validate_batch(database: AsyncEngine, blobs: Blobs, batch: Batch, *, max_line_bytes: int) -> bool:
    """Move a batch on to in_progress or to failed; False when it was cancelled or expired meanwhile."""
    async with autocommit(database) as connection:
        models = await registry.granted_models(connection, batch.caller.tenant_id)
    findings = Findings(batch.endpoint, frozenset(model.name for model in models))
    splitter = LineSplitter(max_line_bytes)
    try:
        async with aclosing(read_blocks(batch, blobs, splitter)) as blocks:
            async for lines, _ in blocks:
                await asyncio.to_thread(_look_at, findings, lines)
                if findings.enough:
                    break
    except LineTooLongError as error:
        findings.add(LineCode.INVALID_JSON, f"The line can't be read: {error}.", error.number)
    except FileNotFoundError:
        findings.add(LineCode.FILE_GONE, "The input file was deleted.", None, "input_file_id")
    if not findings.total and not findings.errors:
        findings.add(LineCode.EMPTY_FILE, "The input file holds no request.", None)
    async with autocommit(database) as connection:
        if findings.errors:
            return await batches.refuse(connection, batch.id, findings.errors)
        assert findings.model is not None
        return await batches.begin(connection, batch.id, total=findings.total, model=findings.model)


def _look_at(findings: Findings, lines: list[Line]) -> None:
    for line in lines:
        findings.look(line)
        if findings.enough:
            return
