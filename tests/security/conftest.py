"""An API process's application in the test's own process: no stack, no worker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from api.app import create_app
from cli.stack.valkey import ValkeyServer
from runtime.settings import Settings
from tests.security.seeds import World
from tests.support.databases import Databases
from tests.support.seeds import PEPPER, opened


@pytest.fixture(scope="module")
async def world(databases: Databases) -> AsyncIterator[World]:
    name = databases.create()
    async with opened(databases.server.url_of(name)) as database:
        yield await World(database).make()
    databases.server.drop_database(name)


@pytest.fixture(scope="module")
async def app(
    world: World, valkey_server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[FastAPI]:
    settings = Settings(
        database_url=world.database.url.set(drivername="postgresql").render_as_string(hide_password=False),
        broker_url=valkey_server.url_of(0),
        streams_url=valkey_server.url_of(1),
        files_url=tmp_path_factory.mktemp("files").as_uri(),
        key_pepper=PEPPER.decode(),
    )
    application = create_app(settings)
    async with application.router.lifespan_context(application):
        yield application


@pytest.fixture(scope="module")
async def http(app: FastAPI, world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        world.http = client
        yield client


# Of the request that is being counted. What the application does beside requests (uses of keys, marks of what was
# published) runs in contexts that were made before, where there is none.
_SEEN: ContextVar[list[str] | None] = ContextVar("seen", default=None)


class Statements:
    """What requests ask the database."""

    def __init__(self, app: FastAPI) -> None:
        self._engine = app.state.headrace.database.sync_engine

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The statements of the requests made inside, as they are run."""

        def see(_: Any, __: Any, statement: str, *___: Any) -> None:
            if (seen := _SEEN.get()) is not None:
                seen.append(statement)

        sa.event.listen(self._engine, "before_cursor_execute", see)
        counted: list[str] = []
        token = _SEEN.set(counted)
        try:
            yield counted
        finally:
            _SEEN.reset(token)
            sa.event.remove(self._engine, "before_cursor_execute", see)


@pytest.fixture
def statements(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> Statements:
    """What is known of keys and of the queue stays known: which request looks it up anew is a matter of the clock."""
    for module in ("api.access", "runtime.admission"):
        monkeypatch.setattr(f"{module}._FRESH_S", float("inf"))
    return Statements(app)
