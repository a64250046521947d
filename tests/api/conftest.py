"""HTTP clients on the session's stack, with the engine that makes up its text."""

from collections.abc import AsyncIterator

import httpx
import pytest
import sqlalchemy as sa
from openai import AsyncOpenAI, OpenAI

from tests.support.stacks import SharedStack as Stack


@pytest.fixture
def stack(deterministic_stack: Stack) -> Stack:
    return deterministic_stack


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client with the stack's key."""
    async with httpx.AsyncClient(base_url=stack.api_url, headers=stack.headers, timeout=30) as client:
        yield client


@pytest.fixture
async def openai(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    """The official client, which does not try again by itself."""
    client = AsyncOpenAI(base_url=f"{stack.api_url}/v1", api_key=stack.api_key, max_retries=0)
    yield client
    await client.close()


@pytest.fixture
def openai_sync(stack: Stack) -> OpenAI:
    """The official synchronous client."""
    return OpenAI(base_url=f"{stack.api_url}/v1", api_key=stack.api_key, max_retries=0)


@pytest.fixture
def accepted(stack: Stack) -> "Counter":
    """Counts accepted tasks: what is refused must not add to them."""
    return Counter(stack.database_url)


class Counter:
    """Rows of `tasks`."""

    def __init__(self, database_url: str) -> None:
        self._engine = sa.create_engine(sa.make_url(database_url).set(drivername="postgresql+psycopg"))

    def __call__(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(sa.text("SELECT count(*) FROM tasks")).scalar_one())
