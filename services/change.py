"""Changes by administrators: each is one transaction that also writes what was changed, by whom, into the audit log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from core.secrets import scrub
from services.new_id import new_id
from storage import audit
from storage.audit import Actor


class MissingError(Exception):
    """What is to be changed or read does not exist."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"No {kind} {name!r}.")
        self.kind = kind


class ConflictError(Exception):
    """What is asked for does not go with what is there; the message says with what."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction of an administrator."""

    connection: AsyncConnection
    actor: Actor

    async def record(
        self,
        action: str,
        object_id: str,
        *,
        tenant_id: str | None = None,
        before: object = None,
        after: object = None,
    ) -> None:
        """Write an audit entry, unless nothing was changed.

        `before` and `after` are what administrators may see of the object: dataclasses or dicts. None: absent.
        """
        if before == after:
            return
        await audit.insert_entry(
            self.connection,
            entry_id=new_id("audit"),
            actor=self.actor,
            action=action,
            object_id=object_id,
            tenant_id=tenant_id,
            before=_encode(before),
            after=_encode(after),
        )


def _encode(value: object) -> bytes | None:
    # no type here holds a secret, and should one ever do so by mistake, this log keeps it out
    return None if value is None else scrub(orjson.dumps(value).decode()).encode()


@asynccontextmanager
async def changing(database: AsyncEngine, actor: Actor) -> AsyncIterator[Change]:
    """Open the transaction; an exception leaves nothing changed and nothing recorded."""
    async with database.begin() as connection:
        yield Change(connection, actor)
