"""Setting up a benchmark's stack over its own commands: tenants with keys, and bounds of length classes."""

import os
import subprocess
import sys

from bench.peer import PeerError
from bench.stack import Stack
from core.lanes import LengthBounds


def run_command(stack: Stack, *arguments: str) -> str:
    """Run a `headrace` command against a stack's stores. Raises: PeerError."""
    done = subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        env={**os.environ, **stack.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise PeerError(f"headrace {' '.join(arguments)}: {done.stderr[-500:]}")
    return done.stdout.strip()


def add_tenant(stack: Stack, tenant: str) -> str:
    """Grant the stack's model to a tenant, which is created, and return a key of it."""
    run_command(stack, "model", "add", stack.model, "--path", str(stack.model_path), "--tenant", tenant)
    file = stack.logs / f"{tenant}.key"
    run_command(stack, "bootstrap", "--tenant", tenant, "--key-file", str(file))
    return file.read_text().strip()


def set_bounds(stack: Stack, bounds: LengthBounds) -> None:
    """Change the length classes of the stack's model."""
    run_command(
        stack,
        *("model", "add", stack.model, "--path", str(stack.model_path)),
        *("--short", str(bounds.short), "--medium", str(bounds.medium)),
    )
