"""What rows of tasks say about a run: when each was accepted, begun and ended."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psycopg

_TASKS = """
SELECT id, state, prompt_tokens + max_output_tokens, coalesce(usage_prompt_tokens + usage_output_tokens, 0),
  extract(epoch FROM created_at)::float8, extract(epoch FROM started_at)::float8,
  extract(epoch FROM finished_at)::float8
FROM tasks WHERE id = ANY(%s)
"""
_OPEN = "SELECT count(*) FROM tasks WHERE id = ANY(%s) AND finished_at IS NULL"


@dataclass(frozen=True, slots=True)
class Lived:
    """One task. Moments are seconds of the database's clock."""

    id: str
    state: str
    tokens: int  # as admitted
    used_tokens: int
    created: float
    started: float | None
    finished: float | None

    @property
    def total_s(self) -> float:
        """From acceptance to the end."""
        return (self.finished or float("inf")) - self.created

    @property
    def waited_s(self) -> float:
        """From acceptance to the start."""
        return (self.started or float("inf")) - self.created


class Rows:
    """A look into a stack's database."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._connection = psycopg.connect(environment["HEADRACE_DATABASE_URL"], autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows, if it has any."""
        cursor = self._connection.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []

    def read(self, ids: Iterable[str]) -> list[Lived]:
        """Read tasks, by acceptance."""
        found = [Lived(*row) for row in self.execute(_TASKS, list(ids))]
        return sorted(found, key=lambda one: one.created)

    def wait(self, ids: Sequence[str], within_s: float) -> None:
        """Wait until these tasks have ended. Raises: ValueError when they don't."""
        deadline = time.monotonic() + within_s
        while (left := self.execute(_OPEN, list(ids))[0][0]) > 0:
            if time.monotonic() > deadline:
                raise ValueError(f"{left} of {len(ids)} tasks did not end within {within_s:.0f} s")
            time.sleep(0.2)

    def give_up(self, ids: Iterable[str]) -> None:
        """End what is still queued, so that the next run finds an empty queue."""
        self.execute(
            "UPDATE tasks SET deadline_at = now() - interval '1 second' WHERE id = ANY(%s) AND state = 'queued'",
            list(ids),
        )
