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


def test_keys_that_were_rotated_before_there_were_first_ids_get_theirs(empty_database_url: str) -> None:
    upgrade(empty_database_url, to="0022")
    engine = sa.create_engine(sa.make_url(empty_database_url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO tenants (id, name) VALUES ('t', 't')"))
        for key, successor in (("a", "b"), ("b", "c"), ("c", None), ("alone", None)):
            connection.execute(
                sa.text(
                    "INSERT INTO api_keys (id, tenant_id, name, lookup, digest, replaced_by)"
                    " VALUES (:id, 't', :id, :id, '', :by)"
                ),
                {"id": key, "by": successor},
            )
    upgrade(empty_database_url)
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT id, first_id FROM api_keys"))
        assert dict(map(tuple, rows)) == {"a": None, "b": "a", "c": "a", "alone": None}
    engine.dispose()


def test_migrating_again_changes_nothing(database_url: str) -> None:
    upgrade(database_url)
