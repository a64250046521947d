"""What files are for, and the states of their rows.

A row comes before its bytes and goes after them, so that whatever a crash leaves behind is found by its row.
"""

from enum import StrEnum


class Purpose(StrEnum):
    """What a file is for. Those that end in `_output` are written by the platform."""

    ASSISTANTS = "assistants"
    BATCH = "batch"
    FINE_TUNE = "fine-tune"
    VISION = "vision"
    USER_DATA = "user_data"
    EVALS = "evals"
    BATCH_OUTPUT = "batch_output"


UPLOADABLE = frozenset(Purpose) - {Purpose.BATCH_OUTPUT}


class FileState(StrEnum):
    """Where a file is. Only a ready one exists for its owner."""

    WRITING = "writing"
    """Bytes are being written. Whoever writes makes it ready; the remover deletes it when that takes too long."""

    READY = "ready"
    """Whole. The owner or its expiry deletes it."""

    DELETED = "deleted"
    """Gone for its owner; the remover deletes the bytes, then the row."""
