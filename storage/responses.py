"""Responses: which task each one is, what it was asked for, and the conversation it goes on from."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.records import Task
from storage.tables import responses, tasks
from storage.tasks import SELECT_TASK


@dataclass(frozen=True, slots=True)
class Response:
    """A response as its owner may see it, with its task."""

    id: str
    previous_id: str | None
    background: bool
    request: str  # JSON text
    task: Task


@dataclass(frozen=True, slots=True)
class Turn:
    """One response of a conversation."""

    id: str
    input: str  # JSON text, its items
    answer: str | None  # JSON text, the chat completion; None while there is none


_SELECT = SELECT_TASK.add_columns(
    responses.c.id.label("response_id"), responses.c.previous_id, responses.c.background, responses.c.request
).join(responses, responses.c.task_id == tasks.c.id)


async def get_response(
    connection: AsyncConnection, tenant_id: str, response_id: str, *, deleted: bool = False
) -> Response | None:
    """Read one response of a tenant; another tenant's id is as unknown as a made-up one."""
    query = _SELECT.where(responses.c.id == response_id, responses.c.tenant_id == tenant_id)
    if not deleted:
        query = query.where(responses.c.deleted_at.is_(None))
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    return Response(row.response_id, row.previous_id, row.background, row.request, Task.of(row))


_CONVERSATION = sa.text("""
WITH RECURSIVE turns AS (
  SELECT id, previous_id, task_id, input, 0 AS age FROM responses
  WHERE id = :id AND tenant_id = :tenant_id AND deleted_at IS NULL
  UNION ALL
  SELECT r.id, r.previous_id, r.task_id, CASE WHEN r.deleted_at IS NULL THEN r.input END, age + 1
  FROM responses r JOIN turns ON r.id = turns.previous_id WHERE r.tenant_id = :tenant_id
)
SELECT turns.id, turns.input, p.response AS answer FROM turns LEFT JOIN task_payloads p USING (task_id)
WHERE turns.input IS NOT NULL ORDER BY age DESC
""")


async def list_turns(connection: AsyncConnection, tenant_id: str, response_id: str) -> Sequence[Turn]:
    """Read a conversation up to a response, oldest turn first; deleted turns are left out."""
    rows = await connection.execute(_CONVERSATION, {"id": response_id, "tenant_id": tenant_id})
    return [Turn(row.id, row.input, row.answer) for row in rows]


async def mark_deleted(connection: AsyncConnection, tenant_id: str, response_id: str) -> str | None:
    """Make a response unknown and return its task's id; None when it is."""
    deleted = await connection.execute(
        responses.update()
        .where(
            responses.c.id == response_id,
            responses.c.tenant_id == tenant_id,
            responses.c.deleted_at.is_(None),
        )
        .values(deleted_at=sa.func.now())
        .returning(responses.c.task_id)
    )
    row = deleted.one_or_none()
    return str(row.task_id) if row else None
