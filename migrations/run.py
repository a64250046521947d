"""Bring a database to the newest schema. Safe to call from several processes at once."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

_ADVISORY_LOCK = 0x68656164726163  # "headrac": one migration at a time per database


def upgrade(
    database_url: str, *, lock_timeout_s: float = 10.0, statement_timeout_s: float = 300.0, to: str = "head"
) -> None:
    """Run all missing migrations, or those `to` a revision; `database_url` as in settings (postgresql://…).

    Raises: sqlalchemy.exc.OperationalError when Postgres can't be reached or a timeout runs out.
    """
    engine = sa.create_engine(sa.make_url(database_url).set(drivername="postgresql+psycopg"))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    try:
        with engine.connect() as connection:
            # Waiting for another migrating process is not bounded by the timeouts of its statements.
            connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_LOCK})
            connection.execute(sa.text(f"SET lock_timeout = '{int(lock_timeout_s * 1000)}ms'"))
            connection.execute(sa.text(f"SET statement_timeout = '{int(statement_timeout_s * 1000)}ms'"))
            connection.commit()
            config.attributes["connection"] = connection
            command.upgrade(config, to)
            connection.commit()
            connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _ADVISORY_LOCK})
            connection.commit()
    finally:
        engine.dispose()
