"""A fresh database to call services on, and a tenant with a key in it. Files that need another tenant say so."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from storage.records import Caller
from tests.support.seeds import opened, seed_caller


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    """The database of this test, opened."""
    async with opened(database_url) as engine:
        yield engine


@pytest.fixture
async def caller(database: AsyncEngine) -> Caller:
    """Who submits."""
    return await seed_caller(database)
