"""Connections for use cases of one statement: it is its own transaction, without the round trips of one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


@asynccontextmanager
async def autocommit(database: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a connection on which each statement commits by itself, and sees what is committed when it runs."""
    async with database.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        yield connection
