"""Reading and accepting tasks, and ending those that no attempt holds. See `storage.attempts` for the rest."""

from collections.abc import Sequence
from datetime import datetime

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core import ranking
from core.failures import Failure
from core.lanes import Lane, LengthClass, Priority
from core.states import FINAL, TaskState
from storage.budgets import HOLD
from storage.ledger import COUNTED, PRICES, USED, charge_queued
from storage.money_tables import ledger_entries
from storage.records import Caller, NewTask, Task
from storage.tables import task_payloads, tasks

SELECT_TASK = sa.select(tasks, ledger_entries.c.cost_usd_micros).outerjoin(
    ledger_entries, ledger_entries.c.task_id == tasks.c.id
)

# `core.ranking.rank_delay_s`, at the rate that the task's model is known to have
_MOST_DELAY_S = f"least({ranking.MOST_DELAY_S}, {ranking.SLACK} * deadline_s)"
_DELAY_S = f"""least({_MOST_DELAY_S}, (prompt_tokens + {ranking.OUTPUT_WEIGHT} * max_output_tokens) * coalesce(
    (SELECT least({ranking.MOST_S}, greatest({ranking.LEAST_S}, {ranking.STRETCH} / tokens_per_s))
     FROM model_rates WHERE model_rates.model = new.model AND tokens_per_s > 0), {ranking.UNMEASURED_S}))"""
_RANK_DELAY_S = f"""CASE WHEN in_order THEN 0
  WHEN priority = '{Priority.BATCH}' THEN {_MOST_DELAY_S} - {_DELAY_S} ELSE {_DELAY_S} END"""


def _insert(rows: str, hold: str) -> sa.TextClause:
    return sa.text(f"""
WITH {rows} AS (
  SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(
    id text, tenant_id text, key_id text, model text, url text, priority text, length_class text,
    max_attempts int, prompt_tokens int, max_output_tokens int, deadline_s float8, metadata jsonb, request text,
    retry_of text, traceparent text, webhook text, response jsonb, reserved_tokens int, prefix_key bigint,
    place int, hold_usd_micros bigint, store bool, in_order bool)
){hold}, payloads AS (
  INSERT INTO task_payloads (task_id, request) SELECT id, request FROM new
), responses AS (
  INSERT INTO responses (id, tenant_id, task_id, previous_id, background, input, request, deleted_at)
  SELECT response->>'id', tenant_id, id, response->>'previous_id', CAST(response->>'background' AS bool),
    response->>'input', response->>'request', CASE response->>'stored' WHEN 'false' THEN now() END
  FROM new WHERE response IS NOT NULL
)
  INSERT INTO tasks (id, tenant_id, key_id, model, url, priority, length_class, max_attempts, prompt_tokens,
                     max_output_tokens, deadline_at, metadata, retry_of, traceparent, webhook, reserved_tokens,
                     prefix_key, rank_at, store, version)
  SELECT id, tenant_id, key_id, model, url, priority, length_class, max_attempts, prompt_tokens,
         max_output_tokens, now() + make_interval(secs => deadline_s), metadata, retry_of, traceparent,
         webhook, reserved_tokens, prefix_key, now() + make_interval(secs => {_RANK_DELAY_S}),
         -- a tenant that stores nothing is not overruled by a request
         store AND (SELECT n.store FROM tenants n WHERE n.id = new.tenant_id),
         (SELECT m.version FROM models m WHERE m.name = new.model)
  FROM new
  RETURNING id, created_at, deadline_at, store
""")


_INSERT = _insert("new", hold="")
_INSERT_HELD = _insert(
    "asked", hold=HOLD
)  # of the tasks asked for, those become new that budgets have room for


async def insert_tasks(
    connection: AsyncConnection, new: Sequence[NewTask]
) -> dict[str, tuple[datetime, datetime, bool]]:
    """Insert tasks and their payloads in one statement; return id → (created, deadline, whether bodies are stored).

    Of tasks that hold a part of a budget, all of one owner, only the first ones are inserted that it has room
    for. Raises: IntegrityError on an id used before.
    """
    rows = [
        {
            "id": task.id,
            "tenant_id": task.caller.tenant_id,
            "key_id": task.caller.key_id,
            "model": task.lane.model,
            "url": task.url,
            "priority": task.lane.priority,
            "length_class": task.lane.length_class,
            "max_attempts": task.max_attempts,
            "prompt_tokens": task.prompt_tokens,
            "max_output_tokens": task.max_output_tokens,
            "deadline_s": task.deadline_s,
            "metadata": task.metadata,
            "request": task.request,
            "retry_of": task.retry_of,
            "traceparent": task.traceparent,
            "webhook": task.webhook,
            "response": task.response,
            "reserved_tokens": task.reserved_tokens,
            "prefix_key": task.prefix_key,
            "place": place,
            "hold_usd_micros": task.hold_usd_micros,
            "store": task.store,
            "in_order": task.in_order,
        }
        for place, task in enumerate(new)
    ]
    insert = _INSERT_HELD if new and new[0].hold_usd_micros is not None else _INSERT
    inserted = await connection.execute(insert, {"rows": orjson.dumps(rows).decode()})
    return {row.id: (row.created_at, row.deadline_at, row.store) for row in inserted}


async def get_task(connection: AsyncConnection, tenant_id: str | None, task_id: str) -> Task | None:
    """Read one task of a tenant; another tenant's id is as unknown as a made-up one. None: whoever's it is."""
    query = SELECT_TASK.where(tasks.c.id == task_id)
    if tenant_id is not None:
        query = query.where(tasks.c.tenant_id == tenant_id)
    row = (await connection.execute(query)).one_or_none()
    return Task.of(row) if row else None


async def get_response(connection: AsyncConnection, task_id: str) -> str | None:
    """Read a task's response body (JSON text), None when it has none."""
    return (
        await connection.execute(
            sa.select(task_payloads.c.response).where(task_payloads.c.task_id == task_id)
        )
    ).scalar_one_or_none()


async def get_payload(connection: AsyncConnection, task_id: str) -> tuple[str, str | None] | None:
    """Read a task's request and response bodies (JSON text); None once they are purged."""
    query = sa.select(task_payloads.c.request, task_payloads.c.response)
    row = (await connection.execute(query.where(task_payloads.c.task_id == task_id))).one_or_none()
    return (row.request, row.response) if row else None


async def list_tasks(
    connection: AsyncConnection,
    tenant_id: str | None,
    *,
    limit: int,
    newest_first: bool,
    after: str | None,
    states: Sequence[TaskState] = (),
    failures: Sequence[Failure] = (),
    model: str | None = None,
) -> list[Task]:
    """List a tenant's tasks by id, which is by time; `after` is exclusive. `tenant_id` None: everybody's."""
    query = SELECT_TASK
    if tenant_id is not None:
        query = query.where(tasks.c.tenant_id == tenant_id)
    if model is not None:
        query = query.where(tasks.c.model == model)
    if failures:
        query = query.where(tasks.c.failure.in_([failure.value for failure in failures]))
    if states:
        query = query.where(tasks.c.state.in_([state.value for state in states]))
    if after is not None:
        query = query.where(tasks.c.id < after if newest_first else tasks.c.id > after)
    query = query.order_by(tasks.c.id.desc() if newest_first else tasks.c.id).limit(limit)
    return [Task.of(row) for row in await connection.execute(query)]


async def get_dead(connection: AsyncConnection, task_id: str, tenant_id: str | None) -> NewTask | None:
    """Read a failed task as what would do it again, under no id yet; None unless it failed and has its body.

    `tenant_id` None: whoever's it is.
    """
    query = (
        sa.select(tasks, task_payloads.c.request)
        .join(task_payloads, task_payloads.c.task_id == tasks.c.id)
        .where(tasks.c.id == task_id, tasks.c.state == TaskState.FAILED.value)
    )
    if tenant_id is not None:
        query = query.where(tasks.c.tenant_id == tenant_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    return NewTask(
        id="",
        caller=Caller(row.key_id, row.tenant_id),
        lane=Lane(row.model, LengthClass(row.length_class), Priority(row.priority)),
        url=row.url,
        request=row.request,
        prompt_tokens=row.prompt_tokens,
        max_output_tokens=row.max_output_tokens,
        deadline_s=(row.deadline_at - row.created_at).total_seconds(),
        max_attempts=row.max_attempts,
        metadata=row.metadata,
        retry_of=row.id,
        store=row.store,
        webhook=row.webhook,
    )


async def final_states(connection: AsyncConnection, task_ids: Sequence[str]) -> dict[str, TaskState]:
    """Say which of these tasks are final; an unknown id is left out."""
    rows = await connection.execute(
        sa.select(tasks.c.id, tasks.c.state).where(
            tasks.c.id == sa.func.any(sa.cast(list(task_ids), sa.ARRAY(sa.Text))),
            tasks.c.state.in_([state.value for state in FINAL]),
        )
    )
    return {row.id: TaskState(row.state) for row in rows}


_IDS = sa.bindparam("ids", type_=sa.ARRAY(sa.Text))

_CANCEL = sa.text(f"""
UPDATE tasks t SET
  state = CASE state WHEN 'queued' THEN 'cancelled' ELSE 'cancelling' END,
  finished_at = CASE state WHEN 'queued' THEN now() END, {COUNTED}
WHERE id IN (
  SELECT id FROM tasks WHERE id = ANY(:ids) AND tenant_id = :tenant_id AND state IN ('queued', 'in_progress')
  ORDER BY id FOR UPDATE)
RETURNING id, state, {USED}, {PRICES}
""").bindparams(sa.bindparam("ids", type_=sa.ARRAY(sa.Text)))


async def request_cancel(
    connection: AsyncConnection, tenant_id: str, task_ids: Sequence[str]
) -> dict[str, TaskState]:
    """Cancel queued tasks for good, mark running ones; return the states of those that changed."""
    rows = list(await connection.execute(_CANCEL, {"ids": list(task_ids), "tenant_id": tenant_id}))
    ended = [row for row in rows if row.state == TaskState.CANCELLED]
    if ended:
        await charge_queued(connection, ended, None)
    return {row.id: TaskState(row.state) for row in rows}


def _end_queued(which: str, first: str = "id") -> sa.TextClause:
    return sa.text(f"""
UPDATE tasks t SET state = :state, finished_at = now(), failure = :failure, failure_message = :message, {COUNTED}
WHERE id IN (SELECT id FROM tasks WHERE state = 'queued' AND {which}
  ORDER BY {first} LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING id, {USED}, {PRICES}
""")


_END_QUEUED_LATE = _end_queued("deadline_at <= now()", first="deadline_at")
_END_QUEUED_ONE = _end_queued("id = :id")
_END_QUEUED_MANY = _end_queued("id = ANY(:ids)").bindparams(_IDS)


async def expire_queued(connection: AsyncConnection, *, message: str, limit: int) -> list[str]:
    """End queued tasks whose deadline passed; return their ids."""
    rows = await connection.execute(
        _END_QUEUED_LATE,
        {"state": TaskState.EXPIRED, "failure": Failure.DEADLINE, "message": message, "limit": limit},
    )
    return await charge_queued(connection, rows.all(), Failure.DEADLINE)


async def expire_these(connection: AsyncConnection, task_ids: Sequence[str], *, message: str) -> list[str]:
    """End those of the tasks that are still queued as expired; return their ids."""
    values = {
        "state": TaskState.EXPIRED,
        "failure": Failure.DEADLINE,
        "message": message,
        "limit": len(task_ids),
        "ids": list(task_ids),
    }
    rows = await connection.execute(_END_QUEUED_MANY, values)
    return await charge_queued(connection, rows.all(), Failure.DEADLINE)


async def end_queued(
    connection: AsyncConnection, task_id: str, state: TaskState, failure: Failure, message: str
) -> bool:
    """End one queued task; False when it is queued no more."""
    rows = await connection.execute(
        _END_QUEUED_ONE,
        {"id": task_id, "state": state, "failure": failure, "message": message, "limit": 1},
    )
    return bool(await charge_queued(connection, rows.all(), failure))


async def count_open(connection: AsyncConnection, model: str, tenant_id: str | None = None) -> int:
    """Count the tasks for a model that are queued or running, of one tenant or of all."""
    query = sa.select(sa.func.count()).where(tasks.c.finished_at.is_(None), tasks.c.model == model)
    if tenant_id is not None:
        query = query.where(tasks.c.tenant_id == tenant_id)
    return int((await connection.execute(query)).scalar_one())
