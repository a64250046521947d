"""Connections for use cases of one statement: it is its own transaction, without the round trips of one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

# With options an engine is another object, over the same pool; making one costs a tenth of a statement
_committing: WeakKeyDictionary[AsyncEngine, AsyncEngine] = WeakKeyDictionary()


@asynccontextmanager
async def autocommit(database: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a connection on which each statement commits by itself, and sees what is committed when it runs."""
    committing = _committing.get(database)
    if committing is None:
        committing = _committing[database] = database.execution_options(isolation_level="AUTOCOMMIT")
    async with committing.connect() as connection:
        yield connection
