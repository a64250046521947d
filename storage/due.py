"""What is due for the control process, asked in one statement: most of the time the answer is nothing.

A duty's own statements decide what they take; these conditions only say whether to look.
"""

from dataclasses import dataclass
from enum import Enum

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.batches import FINAL, BatchState
from core.states import RUNNING
from storage.tables import one_of


class Due(Enum):
    """Kinds of work that time or others bring about."""

    LEASES = "leases"  # expired ones
    DEADLINES = "deadlines"  # of queued tasks, passed
    WEBHOOKS = "webhooks"  # to be queued or sent
    BATCHES = "batches"  # made or cancelled ones, in case the word of it was lost; each step tells the next


_WHERE = {
    Due.DEADLINES: "tasks WHERE state = 'queued' AND deadline_at <= now()",
    Due.WEBHOOKS: f"""(
        SELECT 1 FROM tasks WHERE webhook IS NOT NULL AND webhook_at IS NULL AND finished_at IS NOT NULL
        UNION ALL SELECT 1 FROM batches
          WHERE webhook IS NOT NULL AND webhook_at IS NULL AND {one_of("state", FINAL)}
        UNION ALL SELECT 1 FROM webhook_deliveries WHERE next_at <= now()) AS any_of_them""",
    Due.BATCHES: f"batches WHERE {one_of('state', (BatchState.VALIDATING, BatchState.CANCELLING))}",
}
_LEASE_S = f"""(SELECT CAST(extract(epoch FROM min(lease_expires_at) - now()) AS float8) FROM tasks
  WHERE {one_of("state", RUNNING)})"""
_DUE = sa.text(
    f"SELECT {_LEASE_S}, "
    + ", ".join(f"EXISTS (SELECT 1 FROM {where}) AS {kind.value}" for kind, where in _WHERE.items())
)


@dataclass(frozen=True, slots=True)
class Agenda:
    """What there is to do now, and when the next lease ends unless it is renewed."""

    now: set[Due]
    lease_s: float | None  # from now; None: nothing runs


async def read_due(connection: AsyncConnection) -> Agenda:
    """Ask."""
    lease_s, *others = (await connection.execute(_DUE)).one()
    due = {kind for kind, is_due in zip(_WHERE, others, strict=True) if is_due}
    return Agenda(due if lease_s is None or lease_s > 0 else due | {Due.LEASES}, lease_s)
