"""Migrations and tables say the same."""

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from migrations import upgrade
from storage.schema import metadata


def test_a_migrated_database_has_the_tables_of_the_code(database_url: str) -> None:
    engine = sa.create_engine(sa.make_url(database_url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_migrating_again_changes_nothing(database_url: str) -> None:
    upgrade(database_url)
