"""A lab of its own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.lab import Lab, new_lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """Stores, an API and a control process; the test starts its workers."""
    lab = new_lab(tmp_path)
    try:
        lab.prepare()
        await lab.start_api()
        await lab.start_control()
        yield lab
    finally:
        lab.stop()
        lab.valkey.stop()
        lab.postgres.stop()
