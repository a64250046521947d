"""The pool of connections to Postgres."""

import pytest
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


@pytest.mark.parametrize("plan_once", [False, True])
async def test_statements_by_id_are_planned_once_where_that_is_asked_for(
    database_url: str, plan_once: bool
) -> None:
    database = open_database(settings_of(database_url), name="test", plan_once=plan_once)
    statement = sa.text("SELECT id FROM tasks WHERE id = ANY(:ids)").bindparams(
        sa.bindparam("ids", type_=sa.ARRAY(sa.Text))
    )
    plans = sa.text(
        "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE 'SELECT id FROM tasks%'"
    )
    async with autocommit(database) as connection:
        for _ in range(3):
            await connection.execute(statement, {"ids": ["task_1"]})
        generic, custom = (await connection.execute(plans)).one()
    await database.dispose()
    assert (generic, custom) == ((3, 0) if plan_once else (0, 3))
