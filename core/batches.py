"""A batch's states, who moves it out of each, and what becomes of its lines.

Source: OpenAI's Batch API.
"""

import re
from enum import StrEnum

MAX_LINES = 50_000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_LONGEST_S = 30 * 24 * 3600


class BatchState(StrEnum):
    """Where a batch is. Values are what callers see as `status`."""

    VALIDATING = "validating"
    """Its input is being read for the first time."""

    FAILED = "failed"
    """Final: the input is no batch; `errors` says which lines. Nothing ran."""

    IN_PROGRESS = "in_progress"
    """Lines become tasks, a window at a time; tasks that ended are written to the results."""

    FINALIZING = "finalizing"
    """Every line is in the results; output and error file are put together."""

    COMPLETED = "completed"
    """Final: every line ran to an end of its own, though some or all may have failed."""

    EXPIRED = "expired"
    """Final: the completion window passed before every line had ended; what had is in the results."""

    CANCELLING = "cancelling"
    """Its owner cancelled it: tasks are stopped, what they made is written, and so are lines that never ran."""

    CANCELLED = "cancelled"
    """Final: as expired, by a cancel."""


FINAL = frozenset({BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED})
OPEN = frozenset(BatchState) - FINAL


class LineOutcome(StrEnum):
    """What a line ended as; all but the first are in the error file."""

    COMPLETED = "completed"
    FAILED = "failed"  # an answer other than 200, or refused before it ran
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class LineCode(StrEnum):
    """What makes an input file no batch."""

    INVALID_JSON = "invalid_json_line"
    MISSING = "missing_required_parameter"
    INVALID = "invalid_value"
    UNKNOWN = "unknown_parameter"
    DUPLICATE = "duplicate_custom_id"
    URL_MISMATCH = "url_mismatch"
    MODEL_MISMATCH = "model_mismatch"
    MODEL_NOT_FOUND = "model_not_found"
    EMPTY_FILE = "empty_file"
    TOO_MANY = "too_many_tasks"
    FILE_GONE = "file_not_found"


def parse_window(text: str) -> int:
    """Read a completion window such as `24h`, in s. Raises: ValueError."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text, re.ASCII)
    seconds = int(found[1]) * _UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_S:
        raise ValueError("a completion window is a number with s, m, h or d, such as 24h, of at most 30 days")
    return seconds


def end_of(*, cancelled: bool, unfinished_lines: int) -> BatchState:
    """Return what a batch ends as once every line is written."""
    if cancelled:
        return BatchState.CANCELLED
    return BatchState.EXPIRED if unfinished_lines else BatchState.COMPLETED
