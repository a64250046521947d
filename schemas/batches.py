"""/v1/batches: the request, a line of the input, and the lines of output and error files.

Source: OpenAI's Batch API.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import StringConstraints, model_validator

from core.batches import LineCode, parse_window
from schemas.errors import error_body
from schemas.files import ExpiresAfter
from schemas.json_text import DuplicateKeyError, parse
from schemas.requests import REQUESTS
from schemas.strict import Metadata, Strict, clash

_MAX_CUSTOM_ID = 512  # characters
_LINE_FIELDS = frozenset({"custom_id", "method", "url", "body"})


class BatchCreate(Strict):
    """Body of POST /v1/batches."""

    input_file_id: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
    order: Literal["prefix", "file"] | None = None  # ours: in which order its lines run; prefix by default
    webhook: str | None = None  # ours: the URL that is told of the end

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.endpoint not in REQUESTS:
            raise clash("endpoint", f"is one of {', '.join(REQUESTS)}")
        try:
            parse_window(self.completion_window)
        except ValueError as error:
            raise clash("completion_window", f"is not one: {error}") from error
        return self

    @property
    def window_s(self) -> int:
        """The completion window."""
        return parse_window(self.completion_window)


class LineError(ValueError):
    """Why a line makes its file no batch."""

    def __init__(self, code: LineCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request of an input file; its body is yet to be validated."""

    custom_id: str
    url: str
    model: str
    body: dict[str, Any]


def read_line(text: bytes, endpoint: str) -> RequestLine:
    """Read a line of an input file. Raises: LineError."""
    try:
        line = parse(text)
    except orjson.JSONDecodeError as error:
        raise LineError(LineCode.INVALID_JSON, f"The line is not valid JSON: {error}.") from error
    except DuplicateKeyError as error:
        raise LineError(LineCode.INVALID_JSON, f"The line is not one: {error}.", error.key) from error
    if not isinstance(line, dict):
        raise LineError(LineCode.INVALID_JSON, "The line is not a JSON object.")
    for name in line:
        if name not in _LINE_FIELDS:
            raise LineError(LineCode.UNKNOWN, f"Unknown parameter: {name}.", name)
    custom_id, body = line.get("custom_id"), line.get("body")
    if custom_id is None:
        raise LineError(LineCode.MISSING, "The line has no custom_id.", "custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_CUSTOM_ID or "\0" in custom_id:
        message = f"A custom_id is a string of 1 to {_MAX_CUSTOM_ID} characters."
        raise LineError(LineCode.INVALID, message, "custom_id")
    if line.get("method", "POST") != "POST":
        raise LineError(LineCode.INVALID, "The method is POST.", "method")
    if line.get("url") != endpoint:
        message = f"The url is not the batch's endpoint, {endpoint}."
        raise LineError(LineCode.URL_MISMATCH, message, "url")
    if not isinstance(body, dict):
        raise LineError(LineCode.INVALID, "The body is not a JSON object.", "body")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise LineError(LineCode.MISSING, "The body names no model.", "body.model")
    return RequestLine(custom_id, endpoint, model, body)


def answered(status: int, request_id: str, body: Any) -> dict[str, Any]:
    """What a result line tells of a request that got an answer."""
    return {
        "response": {"status_code": status, "request_id": request_id, "body": body},
        "error": None,
    }


def refused(status: int, request_id: str, message: str, code: str | None, param: str | None = None) -> bytes:
    """What a result line tells of a request that got an error for an answer; JSON."""
    return orjson.dumps(answered(status, request_id, error_body(status, message, code, param)))


def unanswered(code: str, message: str) -> dict[str, Any]:
    """What a result line tells of a request that got no answer."""
    return {"response": None, "error": {"code": code, "message": message}}


EXPIRED = unanswered("batch_expired", "The completion window passed before this request could end.")
CANCELLED = unanswered("batch_cancelled", "The batch was cancelled before this request could end.")


def request_id(batch_id: str, line: int) -> str:
    """The id of a line's request, in both files."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{line}"


def result_line(batch_id: str, line: int, custom_id: str, result: dict[str, Any]) -> bytes:
    """Build a line of an output or error file."""
    head = {"id": request_id(batch_id, line), "custom_id": custom_id}
    return orjson.dumps(head | result) + b"\n"
