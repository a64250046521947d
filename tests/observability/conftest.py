"""A deployment with short windows, whose workers may be harmed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.stack.postgres import PostgresServer
from cli.stack.valkey import ValkeyServer
from tests.chaos.lab import Lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """Stores of its own, and nothing running yet."""
    postgres = PostgresServer(tmp_path / "postgres", None, "test password", durable=False)
    valkey = ValkeyServer(tmp_path / "valkey", None, "test password", durable=False)
    postgres.start()
    valkey.start()
    lab = Lab(tmp_path, postgres, valkey)
    lab.settings |= {"HEADRACE_HEALTH_WINDOW_S": "0.5", "HEADRACE_PROBE_S": "0.5"}
    lab.settings |= {"HEADRACE_DETERMINISTIC_STEP_S": "0.01", "HEADRACE_ENGINE_STUCK_S": "1"}
    try:
        await lab.prepare()
        yield lab
    finally:
        lab.stop()
        valkey.stop()
        postgres.stop()
