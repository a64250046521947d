"""The demo model for tests: converted once, into the folder that `headrace up` uses too."""

import fcntl
import subprocess
import sys
from pathlib import Path

from cli.stack import model

FOLDER = Path(__file__).resolve().parents[2] / ".headrace" / "models" / model.NAME


def demo_model() -> Path:
    """The model's folder; the first call of a checkout takes a minute.

    Converted in a process of its own, because torch stays in memory where it was loaded.
    """
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / f"{model.NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test runs at the same time must not convert into one folder
        if not model.is_complete(FOLDER):
            subprocess.run([sys.executable, "-m", "cli.stack.model", str(FOLDER)], check=True)
    return FOLDER
