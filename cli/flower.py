"""`headrace flower`: Celery's dashboard, behind a password, and on loopback unless told otherwise."""

import os
import sys
from pathlib import Path

from cli.stack.ports import LOOPBACK

USER = "headrace"
PASSWORD_VARIABLE = "HEADRACE_FLOWER_PASSWORD"

_MAX_TASKS = 10_000  # Flower keeps tasks in memory, 7 KiB each; its own limit would take 0.7 GB
_COLUMNS = "name,state,worker,uuid,received,runtime"  # the widest last: a narrow window cuts those off
_GONE_AFTER_S = 300  # a restarted worker has another name: the old one is shown as offline for this long


def run(port: int, password_file: Path | None, *, host: str = LOOPBACK, writable: bool = False) -> None:
    """Become Flower: returns only on failure. Raises: SystemExit without a password."""
    password = password_file.read_text().strip() if password_file else os.environ.get(PASSWORD_VARIABLE, "")
    if not password:
        sys.exit(f"headrace flower: needs a password: --password-file or {PASSWORD_VARIABLE}")
    # By the environment: every local user can read a command line.
    environment = {**os.environ, "FLOWER_BASIC_AUTH": f"{USER}:{password}"}
    words = ["-P", "-m", "cli.flower_process", "-A", "runtime.celery_app", "flower"]
    words += [f"--address={host}", f"--port={port}", f"--max_tasks={_MAX_TASKS}"]
    words += [f"--purge_offline_workers={_GONE_AFTER_S}"]
    words += [f"--tasks_columns={_COLUMNS}", f"--read_only={not writable}"]
    os.execve(sys.executable, [sys.executable, *words], environment)
