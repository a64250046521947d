"""The official client, synchronous and asynchronous, on the session's stacks."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.chaos.lab import Lab, new_lab
from tests.support.sdk import Sdk
from tests.support.stacks import SharedStack


@pytest.fixture(params=["async", "sync"])
async def sdk(deterministic_stack: SharedStack, request: pytest.FixtureRequest) -> AsyncIterator[Sdk]:
    """Either client on the stack whose engine makes up its text."""
    async with Sdk.of(deterministic_stack, request.param) as made:
        yield made


@pytest.fixture(params=["async", "sync"])
async def real_sdk(vllm_stack: SharedStack, request: pytest.FixtureRequest) -> AsyncIterator[Sdk]:
    """Either client on vLLM and the demo model; its tests are marked `vllm`."""
    async with Sdk.of(vllm_stack, request.param) as made:
        yield made


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """Stores of the test's own, for what breaks parts; the test starts them, and sets `lab.settings` before."""
    lab = new_lab(tmp_path, durable=False)
    try:
        await lab.prepare()
        yield lab
    finally:
        lab.stop()
        lab.valkey.stop()
        lab.postgres.stop()


@pytest_asyncio.fixture
async def http(deterministic_stack: SharedStack) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client with the key of the made-up stack, for what the official one can't send."""
    headers = deterministic_stack.headers
    async with httpx.AsyncClient(base_url=deterministic_stack.api_url, headers=headers, timeout=60) as client:
        yield client
