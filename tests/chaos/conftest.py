"""A lab of its own for each test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.lab import Lab, new_lab


@asynccontextmanager
async def _open(folder: Path, *, durable: bool) -> AsyncIterator[Lab]:
    lab = new_lab(folder, durable=durable)
    try:
        await lab.prepare()
        await asyncio.gather(lab.start_api(), lab.start_control())
        yield lab
    finally:
        lab.stop()
        lab.valkey.stop()
        lab.postgres.stop()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """Stores, an API and a control process; the test starts its workers."""
    async with _open(tmp_path, durable=False) as lab:
        yield lab


@pytest.fixture
async def durable_lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """As `lab`, on stores that keep what they acknowledged through a kill -9."""
    async with _open(tmp_path, durable=True) as lab:
        yield lab
