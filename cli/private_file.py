"""Files that hold secrets: readable by their owner only, and whole or not there at all."""

import os
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """Write such a file, in place of a former one. Raises: OSError."""
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as writer:
        writer.write(text)
        writer.flush()
        os.fsync(descriptor)
    fresh.replace(file)


def can_write(file: Path) -> None:
    """Make sure that such a file can be written there, changing nothing. Raises: OSError."""
    probe = file.with_name(file.name + ".new")
    probe.unlink(missing_ok=True)
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    probe.unlink()
