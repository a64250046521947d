"""An API process's application in the test's own process: no stack, no worker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
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


_OF_LOOK_UPS = ("api_keys", "grants", "rate_limits", "budget_periods")


class Statements:
    """What the application asks its database."""

    def __init__(self, app: FastAPI) -> None:
        self._engine = app.state.headrace.database.sync_engine

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The statements run inside, as they are run."""
        seen: list[str] = []

        def see(_: Any, __: Any, statement: str, *___: Any) -> None:
            if not any(table in statement for table in _OF_LOOK_UPS):
                seen.append(statement)

        sa.event.listen(self._engine, "before_cursor_execute", see)
        try:
            yield seen
        finally:
            sa.event.remove(self._engine, "before_cursor_execute", see)


@pytest.fixture
def statements(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> Statements:
    """Keys once known stay known: to look them up is no part of what is counted."""
    monkeypatch.setattr("api.access._FRESH_S", float("inf"))
    return Statements(app)
