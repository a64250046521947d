"""The queue's counts, kept up by triggers and folded here: what waits, what tenants got, how fast models are.

Every change of a task leaves its delta in the same transaction, and folding deletes what it adds: nothing is
counted twice or lost, whoever crashes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.admission import Bound
from core.lanes import Lane, LengthClass, Priority
from core.pace import Ended, Pace
from storage.queue_tables import model_rates, tenant_shares
from storage.tables import tenants


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one tenant has queued in one lane."""

    lane: Lane
    tenant_id: str
    tasks: int
    tokens: int  # prompt and maximum output


_FOLD = sa.text("""
WITH gone AS MATERIALIZED (
  DELETE FROM queue_deltas WHERE ctid = ANY(ARRAY(SELECT ctid FROM queue_deltas LIMIT :limit)) RETURNING *
), waiting AS (
  INSERT INTO backlogs AS b (model, priority, length_class, tenant_id, tasks, tokens)
  SELECT model, priority, length_class, tenant_id, sum(tasks), sum(tokens) FROM gone GROUP BY 1, 2, 3, 4
  HAVING sum(tasks) <> 0 OR sum(tokens) <> 0 ORDER BY 1, 2, 3, 4
  ON CONFLICT (model, priority, length_class, tenant_id)
    DO UPDATE SET tasks = b.tasks + excluded.tasks, tokens = b.tokens + excluded.tokens
), shares AS (
  INSERT INTO tenant_shares AS s (model, tenant_id, served)
  SELECT g.model, g.tenant_id, sum(g.spent_tokens) / max(t.weight)
  FROM gone g JOIN tenants t ON t.id = g.tenant_id GROUP BY 1, 2 HAVING sum(g.spent_tokens) > 0 ORDER BY 1, 2
  ON CONFLICT (model, tenant_id) DO UPDATE SET served = s.served + excluded.served
)
SELECT model, sum(finished) AS finished, sum(retired_tokens) AS retired, sum(output_tokens) AS output,
  sum(max_output_tokens) AS max_output, sum(run_s) AS run_s FROM gone GROUP BY 1
""")
_EMPTIED = sa.text("DELETE FROM backlogs WHERE tasks = 0 AND tokens = 0")

_BACKLOG = sa.text("""
SELECT model, priority, length_class, tenant_id, sum(tasks) AS tasks, sum(tokens) AS tokens FROM (
  SELECT model, priority, length_class, tenant_id, tasks, tokens FROM backlogs
  UNION ALL SELECT model, priority, length_class, tenant_id, tasks, tokens FROM queue_deltas) d
GROUP BY 1, 2, 3, 4 HAVING sum(tasks) > 0
""")


async def fold(connection: AsyncConnection, *, limit: int) -> dict[str, Ended]:
    """Add the deltas to the counts; return by model what ended."""
    rows = await connection.execute(_FOLD, {"limit": limit})
    return {
        row.model: Ended(
            int(row.finished), int(row.retired), int(row.output), int(row.max_output), float(row.run_s)
        )
        for row in rows
    }


async def drop_emptied(connection: AsyncConnection) -> None:
    """Delete counts of nothing."""
    await connection.execute(_EMPTIED)


async def read_backlog(connection: AsyncConnection) -> list[Backlog]:
    """Read what is queued at this moment, folded or not."""
    rows = await connection.execute(_BACKLOG)
    return [
        Backlog(
            Lane(row.model, LengthClass(row.length_class), Priority(row.priority)),
            row.tenant_id,
            int(row.tasks),
            int(row.tokens),
        )
        for row in rows
    ]


async def read_shares(
    connection: AsyncConnection, tenant_ids: Collection[str]
) -> dict[tuple[str, str], float]:
    """Read these tenants' virtual token counters by (model, tenant)."""
    wanted = sa.func.any(sa.cast(list(tenant_ids), sa.ARRAY(sa.Text)))
    rows = await connection.execute(sa.select(tenant_shares).where(tenant_shares.c.tenant_id == wanted))
    return {(row.model, row.tenant_id): row.served for row in rows}


async def raise_shares(connection: AsyncConnection, model: str, served: Mapping[str, float]) -> None:
    """Lift tenants' counters; one that is higher already stays."""
    rows = [{"model": model, "tenant_id": one, "served": level} for one, level in sorted(served.items())]
    statement = insert(tenant_shares).values(rows)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["model", "tenant_id"],
            set_={"served": sa.func.greatest(tenant_shares.c.served, statement.excluded.served)},
        )
    )


async def read_weights(connection: AsyncConnection) -> dict[str, float]:
    """Read the weights of the tenants whose weight is not 1."""
    rows = await connection.execute(
        sa.select(tenants.c.id, tenants.c.weight).where(tenants.c.weight != sa.literal(1.0))
    )
    return {row.id: row.weight for row in rows}


async def read_running_bounds(connection: AsyncConnection) -> dict[str, int]:
    """Read how many tasks tenants may run at once, of those that have such a bound."""
    bound = tenants.c.max_running_tasks
    rows = await connection.execute(sa.select(tenants.c.id, bound).where(bound.is_not(None)))
    return {row.id: row.max_running_tasks for row in rows}


async def read_bounds(connection: AsyncConnection) -> dict[str, Bound]:
    """Read the bounds of what may be queued, of the tenants that have their own."""
    columns = (tenants.c.max_queued_tasks, tenants.c.max_queued_tokens)
    query = sa.select(tenants.c.id, *columns).where(sa.or_(*(column.is_not(None) for column in columns)))
    return {
        row.id: Bound(row.max_queued_tasks, row.max_queued_tokens) for row in await connection.execute(query)
    }


_PACE = tuple(field.name for field in fields(Pace))


async def read_paces(connection: AsyncConnection) -> dict[str, Pace]:
    """Read how fast models are, by model."""
    rows = await connection.execute(sa.select(model_rates))
    return {row.model: Pace(*(getattr(row, name) for name in _PACE)) for row in rows}


async def write_pace(connection: AsyncConnection, model: str, pace: Pace) -> None:
    """Write how fast a model is, measured now."""
    changed = {**{name: getattr(pace, name) for name in _PACE}, "measured_at": sa.func.now()}
    await connection.execute(
        insert(model_rates)
        .values(model=model, **changed)
        .on_conflict_do_update(index_elements=["model"], set_=changed)
    )
