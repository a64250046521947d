"""Accept tasks: one transaction, and nothing published before it has committed."""

from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from storage import tasks
from storage.autocommit import autocommit
from storage.records import NewTask, Task


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's promise that equal keys mean one task."""

    key: str
    body_digest: bytes


class KeyReusedError(Exception):
    """The idempotency key was used before, for another body."""


async def submit(
    database: AsyncEngine, new: NewTask, idempotency: IdempotencyKey | None = None
) -> Task | str:
    """Accept a task and return it, or the id of the task accepted earlier under the same key.

    Raises: KeyReusedError.
    """
    if idempotency is None:
        async with autocommit(database) as connection:
            return await _insert(connection, new)
    try:
        async with database.begin() as connection:
            earlier = await _earlier(connection, new, idempotency)
            if earlier is not None:
                return earlier
            task = await _insert(connection, new)
            await tasks.remember_idempotency_key(
                connection, new.caller.tenant_id, idempotency.key, idempotency.body_digest, new.id
            )
            return task
    except IntegrityError:
        # The same key at the same moment: the other transaction committed first, this one left nothing.
        async with autocommit(database) as connection:
            earlier = await _earlier(connection, new, idempotency)
        if earlier is None:
            raise
        return earlier


async def _insert(connection: AsyncConnection, new: NewTask) -> Task:
    times = await tasks.insert_tasks(connection, [new])
    return Task.accepted(new, *times[new.id])


async def _earlier(connection: AsyncConnection, new: NewTask, idempotency: IdempotencyKey) -> str | None:
    found = await tasks.find_idempotency_key(connection, new.caller.tenant_id, idempotency.key)
    if found is None:
        return None
    if found[0] != idempotency.body_digest:
        raise KeyReusedError
    return found[1]
