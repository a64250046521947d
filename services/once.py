"""One thing a key: what was accepted under an idempotency key is answered again rather than done again.

Two kinds of key: one that the caller sent, and one made of the body, for clients that send none but say when
they try again (`x-stainless-retry-count`): a first try never finds an earlier one, a further try does.

Used inside the transaction that accepts the thing, so that key and thing are stored together or not at all:

    async with database.begin() as connection:
        earlier = await find_earlier(connection, tenant_id, key)
        if earlier is None:
            ...
            await remember(connection, tenant_id, key, Earlier(object_id, 202, answer))
"""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from storage import idempotency
from storage.autocommit import autocommit
from storage.idempotency import Earlier

__all__ = [
    "Earlier",
    "IdempotencyKey",
    "KeyInFlightError",
    "KeyReusedError",
    "find_earlier",
    "forget",
    "remember",
]

_RETRY_WITHIN_S = 15 * 60.0  # a client that tries again by itself does so within its timeout


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's promise. `again`: None for a key that was sent, else whether the client says it tries again."""

    key: str
    body_digest: bytes
    again: bool | None = None


class KeyReusedError(Exception):
    """The idempotency key was used before, for another body."""


class KeyInFlightError(Exception):
    """A request with the same key is being accepted at this moment."""


async def find_earlier(connection: AsyncConnection, tenant_id: str, key: IdempotencyKey) -> Earlier | None:
    """Hold the key until the transaction ends and return what was accepted under it.

    Raises: KeyReusedError, KeyInFlightError.
    """
    if not await idempotency.lock(connection, tenant_id, key.key):
        raise KeyInFlightError
    if key.again is False:
        return None
    within_s = _RETRY_WITHIN_S if key.again else None
    found = await idempotency.find(connection, tenant_id, key.key, within_s=within_s)
    if found is None:
        return None
    digest, earlier = found
    if digest != key.body_digest:
        raise KeyReusedError
    return earlier


async def remember(
    connection: AsyncConnection,
    tenant_id: str,
    key: IdempotencyKey,
    earlier: Earlier,
    *,
    task_id: str | None = None,
) -> None:
    """Store the key with what is accepted under it and what its caller is told; `task_id`: it goes with the task."""
    await idempotency.put(connection, tenant_id, key.key, key.body_digest, earlier, task_id=task_id)


async def forget(database: AsyncEngine, tenant_id: str, key: IdempotencyKey) -> None:
    """Give a key back whose request came to nothing: the caller's next try is a new one."""
    async with autocommit(database) as connection:
        await idempotency.delete(connection, tenant_id, key.key)
