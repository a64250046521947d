"""The ledger: charges of tasks that end while they are queued, and corrections. Others are charged in their settle.

Every final task has one entry, those that never ran as well: tasks and ledger compare row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.failures import RULES, Failure
from core.pricing import Usage, cost_usd_micros
from storage.budgets import SPEND
from storage.records import Used
from storage.tariffs import prices_of, tariff_of

# Parts of statements over `tasks t`. The price is the one at acceptance, whenever the task runs.
PRICES = f"({prices_of('t.model', 't.version', 't.priority', 't.created_at')}) AS prices"
USED = "t.usage_prompt_tokens, t.usage_cached_tokens, t.usage_output_tokens, t.engine_us"
COUNTED = """usage_prompt_tokens = coalesce(usage_prompt_tokens, 0),
  usage_cached_tokens = coalesce(usage_cached_tokens, 0), usage_output_tokens = coalesce(usage_output_tokens, 0)"""


def used_of(row: Any) -> Used:
    """Read a row that has `USED`."""
    usage = Usage(row.usage_prompt_tokens or 0, row.usage_cached_tokens or 0, row.usage_output_tokens or 0)
    return Used(usage, row.engine_us)


_CHARGE = sa.text(f"""
WITH charged AS (
  SELECT t.*, c.tariff_id, c.cost, CASE WHEN :charged THEN 1 ELSE 0 END AS yes
  FROM tasks t JOIN unnest(CAST(:ids AS text[]), CAST(:costs AS bigint[]), CAST(:tariffs AS bigint[]))
    AS c(task_id, cost, tariff_id) ON c.task_id = t.id
){SPEND}
INSERT INTO ledger_entries (task_id, tenant_id, key_id, model, version, priority, tariff_id, prompt_tokens,
                            cached_tokens, output_tokens, engine_us, cost_usd_micros)
SELECT id, tenant_id, key_id, model, version, priority, tariff_id, usage_prompt_tokens * yes, usage_cached_tokens * yes,
  usage_output_tokens * yes, engine_us * yes, cost FROM charged
""").bindparams(
    sa.bindparam("ids", type_=sa.ARRAY(sa.Text)),
    sa.bindparam("costs", type_=sa.ARRAY(sa.BigInteger)),
    sa.bindparam("tariffs", type_=sa.ARRAY(sa.BigInteger)),
    sa.bindparam("charged", type_=sa.Boolean),
)


async def charge_queued(
    connection: AsyncConnection, ended: Sequence[Any], failure: Failure | None
) -> list[str]:
    """Write the entries of tasks that ended between two attempts or before the first; return their ids.

    `ended`: rows with id, `USED` and `PRICES`. What earlier attempts generated is charged, unless we failed.
    """
    if not ended:
        return []
    charged = failure is None or RULES[failure].billed
    tariffs = [tariff_of(row.prices) for row in ended]
    used = [used_of(row) for row in ended]
    costs = [
        cost_usd_micros(one.usage, tariff, one.engine_us) if charged else 0
        for one, tariff in zip(used, tariffs, strict=True)
    ]
    ids = [str(row.id) for row in ended]
    await connection.execute(
        _CHARGE,
        {"ids": ids, "costs": costs, "tariffs": [tariff.id for tariff in tariffs], "charged": charged},
    )
    return ids


@dataclass(frozen=True, slots=True)
class Correction:
    """An entry that adds to what a task was charged."""

    id: str
    task_id: str
    tenant_id: str
    cost_usd_micros: int
    reason: str
    created_at: datetime


_CHARGED = sa.text("""
WITH task AS (SELECT id FROM tasks WHERE id = :id AND finished_at IS NOT NULL FOR UPDATE)
SELECT CAST(sum(l.cost_usd_micros) AS bigint) AS charged
FROM ledger_entries l JOIN task ON task.id = l.task_id OR task.id = l.corrects
""")


async def lock_charged(connection: AsyncConnection, task_id: str) -> int | None:
    """What a final task was charged, corrections included, in micro-USD; None: no such task. Locks the task."""
    charged: int | None = await connection.scalar(_CHARGED, {"id": task_id})
    return charged


_CORRECT = sa.text(f"""
WITH charged AS (
  SELECT t.id, t.tenant_id, t.key_id, t.model, t.version, t.priority, t.created_at, CAST(:cost AS bigint) AS cost
  FROM tasks t WHERE t.id = :id
){SPEND}
INSERT INTO ledger_entries (kind, corrects, reason, tenant_id, key_id, model, version, priority, prompt_tokens,
                            cached_tokens, output_tokens, cost_usd_micros)
SELECT 'correction', id, :reason, tenant_id, key_id, model, version, priority, 0, 0, 0, cost FROM charged
RETURNING id, corrects, tenant_id, cost_usd_micros, reason, created_at
""")


async def insert_correction(
    connection: AsyncConnection, task_id: str, usd_micros: int, reason: str
) -> Correction:
    """Add an entry to a task's; budgets count it in the month in which the task was accepted."""
    row = (await connection.execute(_CORRECT, {"id": task_id, "cost": usd_micros, "reason": reason})).one()
    return Correction(
        f"entry_{row.id}", row.corrects, row.tenant_id, row.cost_usd_micros, row.reason, row.created_at
    )
