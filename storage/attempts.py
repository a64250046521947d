"""Writes of attempts: renew, settle, hand back, rescue. Each is a compare-and-set on (state, attempt)
and takes many tasks in one statement, so that a worker's cost does not grow with its round trips. How they begin:
`storage.claims`.

Rows are locked in id order, so two statements over the same tasks can't deadlock.
"""

from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.failures import RULES, Failure
from core.lanes import Lane, LengthClass, Priority
from storage.budgets import SPEND
from storage.ledger import PRICES, USED, used_of
from storage.records import Ending, Held, Lost, LostAttempt, Used
from storage.tariffs import tariff_of

_IDS = sa.bindparam("ids", type_=sa.ARRAY(sa.Text))

_EXPOSE = sa.text("""
UPDATE tasks SET exposed = :exposed WHERE id = :id AND attempt = :attempt AND state IN ('in_progress', 'cancelling')
RETURNING id
""")


async def set_exposed(connection: AsyncConnection, task_id: str, attempt: int, exposed: bool) -> bool:
    """Note whether a task under suspicion is in the engine without a token; False when it is held no more."""
    rows = await connection.execute(_EXPOSE, {"id": task_id, "attempt": attempt, "exposed": exposed})
    return rows.one_or_none() is not None


_RENEW = sa.text("""
WITH mine AS (
  SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:attempts AS int[]), CAST(:cleared AS bool[]),
                       CAST(:prompt AS int[]), CAST(:cached AS int[]), CAST(:output AS int[]),
                       CAST(:engine_us AS bigint[]), CAST(:preemptions AS int[]))
    AS m(id, attempt, cleared, prompt, cached, output, engine_us, preemptions)
), locked AS MATERIALIZED (
  SELECT m.* FROM tasks t JOIN mine m ON m.id = t.id AND m.attempt = t.attempt
  WHERE t.state IN ('in_progress', 'cancelling') ORDER BY t.id FOR UPDATE OF t
)
UPDATE tasks t SET lease_expires_at = now() + make_interval(secs => :lease_s),
  exposed = t.exposed AND NOT locked.cleared, usage_prompt_tokens = locked.prompt,
  usage_cached_tokens = locked.cached, usage_output_tokens = locked.output, engine_us = locked.engine_us,
  preemptions = greatest(t.preemptions, locked.preemptions)
FROM locked WHERE t.id = locked.id
RETURNING t.id, t.state
""").bindparams(
    _IDS,
    sa.bindparam("attempts", type_=sa.ARRAY(sa.Integer)),
    sa.bindparam("cleared", type_=sa.ARRAY(sa.Boolean)),
    sa.bindparam("prompt", type_=sa.ARRAY(sa.Integer)),
    sa.bindparam("cached", type_=sa.ARRAY(sa.Integer)),
    sa.bindparam("output", type_=sa.ARRAY(sa.Integer)),
    sa.bindparam("engine_us", type_=sa.ARRAY(sa.BigInteger)),
    sa.bindparam("preemptions", type_=sa.ARRAY(sa.Integer)),
)


async def renew(connection: AsyncConnection, running: Sequence[Held], *, lease_s: float) -> dict[str, str]:
    """Renew leases, clear of suspicion what has produced tokens, and note what was used and how often slots were lent.

    Return id → state of those still held.
    """
    rows = await connection.execute(
        _RENEW,
        {
            "ids": [held.task_id for held in running],
            "attempts": [held.attempt for held in running],
            "cleared": [held.cleared for held in running],
            "prompt": [held.used.usage.prompt_tokens for held in running],
            "cached": [held.used.usage.cached_tokens for held in running],
            "output": [held.used.usage.output_tokens for held in running],
            "engine_us": [held.used.engine_us for held in running],
            "preemptions": [held.preemptions for held in running],
            "lease_s": lease_s,
        },
    )
    return {row.id: row.state for row in rows}


# of the attempt that ends: the task's, less that of the attempts before
_ENGINE_US = "t.engine_us - coalesce((SELECT sum(a.engine_us) FROM attempts a WHERE a.task_id = t.id), 0)"

_SETTLE_TEXT = """
WITH ends AS (
  SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(
    id text, attempt int, state text, finish_reason text, failure text, failure_message text, response text,
    prompt int, cached int, output int, engine_us bigint, ttft_ms int, preemptions int, billed bool, cost bigint,
    tariff_id bigint)
), locked AS MATERIALIZED (
  -- a task being cancelled ends as cancelled whatever stopped it, unless it was quicker and completed
  SELECT t.id, t.state = 'cancelling' AND e.state <> 'completed' AS cancelled
  FROM tasks t JOIN ends e ON e.id = t.id AND e.attempt = t.attempt
  WHERE t.state IN ('in_progress', 'cancelling') ORDER BY t.id FOR UPDATE OF t
), ended AS (
  UPDATE tasks t SET
    state = CASE WHEN locked.cancelled THEN 'cancelled' ELSE e.state END,
    finished_at = now(), lease_expires_at = NULL, finish_reason = e.finish_reason,
    failure = CASE WHEN NOT locked.cancelled THEN e.failure END,
    failure_message = CASE WHEN NOT locked.cancelled THEN e.failure_message END, usage_prompt_tokens = e.prompt,
    usage_cached_tokens = e.cached, usage_output_tokens = e.output, ttft_ms = coalesce(e.ttft_ms, t.ttft_ms),
    engine_us = e.engine_us, preemptions = greatest(t.preemptions, e.preemptions),
    failures = t.failures + CASE WHEN e.failure IS NULL OR locked.cancelled THEN 0 ELSE 1 END
  FROM locked, ends e WHERE t.id = locked.id AND e.id = t.id
  RETURNING t.*
), payload AS (
  UPDATE task_payloads p SET response = e.response
  FROM ended, ends e WHERE p.task_id = ended.id AND e.id = ended.id AND e.response IS NOT NULL
), history AS (
  INSERT INTO attempts (task_id, attempt, worker, claimed_at, outcome, failure, output_tokens, engine_us)
  SELECT id, attempt, worker, claimed_at, state, failure, usage_output_tokens, {engine} FROM ended t
), charged AS (
  -- a failure on our side is free
  SELECT ended.*, e.tariff_id, e.prompt * yes AS prompt, e.cached * yes AS cached, e.output * yes AS output,
    ended.engine_us * yes AS engine, e.cost * yes AS cost
  FROM ended JOIN ends e ON e.id = ended.id,
    LATERAL (SELECT CASE WHEN e.billed OR ended.state = 'cancelled' THEN 1 ELSE 0 END AS yes) AS c
), ledger AS (
  INSERT INTO ledger_entries (task_id, tenant_id, key_id, model, version, priority, tariff_id, prompt_tokens,
                              cached_tokens, output_tokens, engine_us, cost_usd_micros)
  SELECT id, tenant_id, key_id, model, version, priority, tariff_id, prompt, cached, output, engine, cost FROM charged
){spend}
SELECT id, state FROM ended
"""
_SETTLE = sa.text(_SETTLE_TEXT.format(engine=_ENGINE_US, spend=SPEND))


def _message(end: Ending) -> str | None:
    if end.failure is None:
        return end.failure_message
    # Postgres stores no NUL in text, and an engine's refusal may quote one
    return (end.failure_message or RULES[end.failure].message).replace("\0", "\ufffd")


async def settle(connection: AsyncConnection, endings: Sequence[Ending]) -> dict[str, str]:
    """End tasks: state, response, attempt record and ledger entry in one statement.

    Return id → state of those ended, cancelled where a cancel came first; the others belong to another
    attempt now, and their result is dropped.
    """
    rows = [
        {
            "id": end.task_id,
            "attempt": end.attempt,
            "state": end.state,
            "finish_reason": end.finish_reason,
            "failure": end.failure,
            "failure_message": _message(end),
            "response": end.response,
            "prompt": end.usage.prompt_tokens,
            "cached": end.usage.cached_tokens,
            "output": end.usage.output_tokens,
            "ttft_ms": end.ttft_ms,
            "preemptions": end.preemptions,
            "billed": end.failure is None or RULES[end.failure].billed,
            "engine_us": end.engine_us,
            "cost": end.cost_usd_micros,
            "tariff_id": end.tariff_id,
        }
        for end in endings
    ]
    result = await connection.execute(_SETTLE, {"rows": orjson.dumps(rows).decode()})
    return {row.id: row.state for row in result}


# The end of patience: attempts that count against a task are bounded by its max_attempts, and those that
# only happened to it (its worker died over another task) by this many more.
_MISFORTUNES = 10

_REQUEUE = """
WITH locked AS MATERIALIZED (
  SELECT t.id, {blame} AS blame, t.lease_expires_at AS expired_at FROM tasks t WHERE t.state = 'in_progress' AND {which}
    AND t.failures + {blame} < t.max_attempts AND t.attempt < t.max_attempts + {misfortunes}
  ORDER BY t.id {limit} FOR UPDATE OF t
), requeued AS (
  UPDATE tasks t SET state = 'queued', lease_expires_at = NULL, exposed = false,
    published_at = NULL, failures = failures + locked.blame{used}
  FROM locked WHERE t.id = locked.id
  RETURNING t.*
), history AS (
  INSERT INTO attempts (task_id, attempt, worker, claimed_at, outcome, failure, engine_us)
  SELECT id, attempt, worker, claimed_at, state, :failure, {engine} FROM requeued t
)
SELECT {told} FROM requeued t JOIN locked USING (id)
"""
# of an attempt that was lost; `lease`: when that was
_TOLD = """t.id, t.tenant_id, t.model, t.length_class, t.priority, t.attempt, t.worker, t.created_at, t.claimed_at,
  t.traceparent, {lease} AS lease_expired_at, now() AS found_at,
  (SELECT i.batch_id FROM batch_items i WHERE i.task_id = t.id) AS batch_id"""
_HAND_BACK = sa.text(
    _REQUEUE.format(
        blame="CAST(:blame AS int)",
        which="t.id = :id AND t.attempt = :attempt",
        limit="",
        misfortunes=_MISFORTUNES,
        used=""",
    usage_prompt_tokens = :prompt, usage_cached_tokens = :cached, usage_output_tokens = :output,
    engine_us = :engine_us""",
        engine=_ENGINE_US,
        told="id",
    )
)
_RESCUE = sa.text(
    _REQUEUE.format(
        blame="CAST(t.exposed AS int)",
        which="t.lease_expires_at < now() AND t.deadline_at > now()",
        limit="LIMIT :limit",
        misfortunes=_MISFORTUNES,
        used="",  # stays as last renewed
        engine=_ENGINE_US,
        told=_TOLD.format(lease="locked.expired_at"),
    )
)


async def hand_back(
    connection: AsyncConnection, task_id: str, attempt: int, failure: Failure, *, blame: bool, used: Used
) -> bool:
    """Queue a running task again for the next attempt, at once rather than after the lease.

    `blame` counts the attempt against the task. False: it is held no more, being cancelled, or out of attempts.
    """
    rows = await connection.execute(
        _HAND_BACK,
        {
            "id": task_id,
            "attempt": attempt,
            "failure": failure,
            "blame": int(blame),
            "prompt": used.usage.prompt_tokens,
            "cached": used.usage.cached_tokens,
            "output": used.usage.output_tokens,
            "engine_us": used.engine_us,
        },
    )
    return rows.one_or_none() is not None


async def rescue(connection: AsyncConnection, *, limit: int) -> list[LostAttempt]:
    """Queue tasks with an expired lease again where attempts and deadline allow; return the attempts that held them."""
    rows = await connection.execute(_RESCUE, {"failure": Failure.WORKER_LOST, "limit": limit})
    return [_told(row) for row in rows]


def _told(row: Any) -> LostAttempt:
    return LostAttempt(
        task_id=row.id,
        tenant_id=row.tenant_id,
        lane=Lane(row.model, LengthClass(row.length_class), Priority(row.priority)),
        attempt=row.attempt,
        worker=row.worker,
        created_at=row.created_at,
        claimed_at=row.claimed_at,
        lease_expired_at=row.lease_expired_at,
        found_at=row.found_at,
        traceparent=row.traceparent,
        batch_id=row.batch_id,
    )


_LOST = sa.text(f"""
SELECT {_TOLD.format(lease="t.lease_expires_at")}, t.prompt_tokens, {USED}, deadline_at <= now() AS late, {PRICES}
FROM tasks t
WHERE state IN ('in_progress', 'cancelling') AND lease_expires_at < now()
  AND (state = 'cancelling' OR failures + CAST(exposed AS int) >= max_attempts
       OR attempt >= max_attempts + {_MISFORTUNES} OR deadline_at <= now())
ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
""")


async def find_lost(connection: AsyncConnection, *, limit: int) -> list[Lost]:
    """Lock expired leases that `rescue` leaves: their tasks are to be ended."""
    rows = await connection.execute(_LOST, {"limit": limit})
    return [
        Lost(
            row.id, row.attempt, row.prompt_tokens, row.late, tariff_of(row.prices), used_of(row), _told(row)
        )
        for row in rows
    ]
