"""Alembic migrations, run under an advisory lock with lock and statement timeouts."""
