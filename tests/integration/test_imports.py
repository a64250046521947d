"""Only the worker on vLLM imports vllm or torch: every other process starts without them."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "transformers")


@pytest.mark.parametrize(
    "module",
    [
        "api.app",
        "control.app",
        "cli.main",
        "cli.admin",
        "cli.up",
        "cli.demo",
        "bench.main",
        "workers.app",
        "workers.deterministic",
    ],
)
def test_a_process_without_an_engine_loads_no_model_runtime(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
