"""Keys as this process knows them: what they open, and when they were last used."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable
from dataclasses import dataclass

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from core.keys import is_well_formed
from services.authenticate import Access, authenticate, note_uses
from storage.errors import STORE_ERRORS

log = structlog.get_logger()
_FRESH_S = 1.0  # for how long a key and its grants are taken as known
_MOST_KEYS = 10_000
_WRITE_EVERY_S = 5.0
_AGAIN_S = 60.0  # a key's use is written no more often


class KeyUses:
    """When keys were last used: kept here, and written by the way, many in one statement."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database
        self._written: dict[str, float] = {}
        self._waiting: dict[str, float] = {}

    def note(self, key_id: str) -> None:
        """Take down that a key is used now."""
        now = time.time()
        if now - self._written.get(key_id, 0.0) >= _AGAIN_S:
            self._waiting[key_id] = now

    async def write(self) -> None:
        """Write what was taken down. What a store that is away refused is kept for the next time."""
        used, self._waiting = self._waiting, {}
        if not used:
            return
        try:
            await note_uses(self._database, used)
        except STORE_ERRORS as error:
            self._waiting = used | self._waiting
            log.warning("key_uses_not_written", error=type(error).__name__)
            return
        if len(self._written) >= _MOST_KEYS:
            self._written.clear()
        self._written |= used

    async def run(self) -> None:
        """Write from time to time, until cancelled."""
        while True:
            await asyncio.sleep(_WRITE_EVERY_S)
            await self.write()


@dataclass(frozen=True, slots=True)
class _LookUp:
    at: float
    access: Awaitable[Access | None]


class AccessCache:
    """Keys looked up in the last second: revocation is in force a second later on every process.

    Of many requests with one key that come when it is to be looked up anew, one asks.
    """

    def __init__(self, database: AsyncEngine, pepper: bytes) -> None:
        self._database, self._pepper = database, pepper
        self._known: dict[bytes, _LookUp] = {}
        self.uses = KeyUses(database)

    async def get(self, key_text: str) -> Access | None:
        """Return what a key gives access to, None when it is not in force."""
        if not is_well_formed(key_text):
            return None
        name = hashlib.sha256(key_text.encode()).digest()  # keys themselves stay out of long-lived memory
        now = time.monotonic()
        known = self._known.get(name)
        if known is None or now - known.at > _FRESH_S:
            known = _LookUp(now, asyncio.create_task(authenticate(self._database, key_text, self._pepper)))
            if len(self._known) >= _MOST_KEYS:
                self._known.clear()
            self._known[name] = known
        try:
            # who leaves must not take the answer away from the others that wait for it
            access = await asyncio.shield(known.access)
        except Exception:
            if self._known.get(name) is known:
                del self._known[name]
            raise
        if access is not None:
            self.uses.note(access.caller.key_id)
        return access
