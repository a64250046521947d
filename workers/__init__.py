"""Celery edge: the pool, the one task, the attempt runner, and the engine behind a protocol."""
