"""Where one queued task stands among its tenant's own, counted up to a bound so that asking stays cheap."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

MOST = 10_000  # counted: whoever stands further back is told an estimate anyhow


@dataclass(frozen=True, slots=True)
class Standing:
    """What of its tenant goes before a task, in its priority."""

    sent: bool  # the broker has it: a slot is next
    tasks: int
    tokens: int
    whole: bool  # False: there are more
    at_bound: bool = False  # its tenant runs as many tasks as it may


_STANDING = sa.text(f"""
WITH me AS (
  SELECT id, model, priority, tenant_id, rank_at, published_at IS NOT NULL AS sent FROM tasks
  WHERE id = :id AND state = 'queued'
), before AS (
  SELECT t.prompt_tokens + t.max_output_tokens AS tokens FROM me, tasks t
  WHERE NOT me.sent AND t.state = 'queued' AND t.published_at IS NULL AND t.model = me.model
    AND t.priority = me.priority AND t.tenant_id = me.tenant_id
    AND (t.rank_at, t.id) < (me.rank_at, me.id) LIMIT {MOST}
)
SELECT me.sent, (SELECT count(*) FROM before) AS tasks, (SELECT coalesce(sum(tokens), 0) FROM before) AS tokens,
  CASE WHEN n.max_running_tasks IS NULL THEN false ELSE n.max_running_tasks <= (
    SELECT count(*) FROM tasks r WHERE r.tenant_id = n.id AND r.state IN ('in_progress', 'cancelling')) END AS at_bound
FROM me JOIN tenants n ON n.id = me.tenant_id
""")


async def read_standing(connection: AsyncConnection, task_id: str) -> Standing | None:
    """Read where a task stands; None when it is queued no more."""
    row = (await connection.execute(_STANDING, {"id": task_id})).one_or_none()
    return (
        None
        if row is None
        else Standing(row.sent, row.tasks, int(row.tokens), row.tasks < MOST, row.at_bound)
    )
