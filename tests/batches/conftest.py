"""Clients of the session's deterministic stack, and blob stores of a test's own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI
from sqlalchemy.ext.asyncio import AsyncEngine

from storage.blobs import Blobs
from tests.support.seeds import opened
from tests.support.stacks import SharedStack as Stack


@pytest.fixture
def stack(deterministic_stack: Stack) -> Stack:
    return deterministic_stack


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client with the stack's key."""
    async with httpx.AsyncClient(base_url=stack.api_url, headers=stack.headers, timeout=60) as client:
        yield client


@pytest.fixture
async def openai(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    """The official client, which does not try again by itself."""
    client = AsyncOpenAI(base_url=f"{stack.api_url}/v1", api_key=stack.api_key, max_retries=0)
    yield client
    await client.close()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    """A pool on a migrated database of the test's own."""
    async with opened(database_url) as engine:
        yield engine


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Blobs]:
    """A folder of the test's own."""
    store = Blobs(str(tmp_path / "blobs"))
    yield store
    store.close()
