"""Alembic migrations, run under an advisory lock with lock and statement timeouts."""

from migrations.run import upgrade

__all__ = ["upgrade"]
