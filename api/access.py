"""Keys as this process knows them: what they open, and when they were last used."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine

from api.aside import Aside
from core.keys import is_well_formed
from services.authenticate import Access, authenticate, note_uses

_FRESH_S = 1.0  # for how long a key and its grants are taken as known
_MOST_KEYS = 10_000
_WRITE_EVERY_S = 5.0
_AGAIN_S = 60.0  # a key's use is written no more often


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
        self.uses = Aside("key uses", partial(note_uses, database), every_s=_WRITE_EVERY_S, again_s=_AGAIN_S)

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
            self.uses.note(access.key_id)
        return access
