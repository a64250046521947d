"""The pool of connections to Postgres."""

import sqlalchemy as sa
from pydantic import SecretStr

from runtime.resources import open_database
from runtime.settings import Settings
from storage.autocommit import autocommit
from tests.support.seeds import opened
from tests.support.waiting import eventually_async


def settings_of(database_url: str) -> Settings:
    return Settings(
        database_url=SecretStr(database_url),
        broker_url=SecretStr("redis://localhost"),
        streams_url=SecretStr("redis://localhost"),
        key_pepper=SecretStr("pepper"),
    )


async def test_connections_that_the_server_closed_cost_no_statement(database_url: str) -> None:
    database = open_database(settings_of(database_url), name="test")
    mine = "application_name = 'headrace test'"
    async with autocommit(database) as first, autocommit(database) as second:
        for connection in (first, second):
            await connection.execute(sa.text("SELECT 1"))
    async with opened(database_url) as other, autocommit(other) as connection:
        await connection.execute(
            sa.text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")
        )

        async def gone() -> bool:
            found = await connection.execute(sa.text(f"SELECT 1 FROM pg_stat_activity WHERE {mine}"))
            return found.first() is None

        await eventually_async(gone, what="the pool's connections are closed")
    async with autocommit(database) as first, autocommit(database) as second:
        for connection in (first, second):
            assert (await connection.execute(sa.text("SELECT 1"))).scalar_one() == 1
    await database.dispose()
