"""What the API process holds: built at start-up, reached from routes by `state_of`."""

import hashlib
import time
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from api.live import LiveEvents
from runtime.capacity import Backlog, MemoryAlarm
from runtime.publishing import PublishingThread
from runtime.settings import Settings
from runtime.tokenizers import Tokenizers
from services.authenticate import Access, authenticate
from storage.blobs import Blobs
from storage.streams import EventStreams

_FRESH_S = 1.0  # for how long a key and its grants are taken as known
_MOST_KEYS = 10_000


class AccessCache:
    """Keys looked up in the last second: revocation is in force a second later on every process."""

    def __init__(self, database: AsyncEngine, pepper: bytes) -> None:
        self._database, self._pepper = database, pepper
        self._known: dict[bytes, tuple[float, Access | None]] = {}

    async def get(self, key_text: str) -> Access | None:
        """Return what a key gives access to, None when it is not in force."""
        name = hashlib.sha256(key_text.encode()).digest()  # keys themselves stay out of long-lived memory
        now = time.monotonic()
        at, access = self._known.get(name, (0.0, None))
        if now - at > _FRESH_S:
            access = await authenticate(self._database, key_text, self._pepper)
            if len(self._known) >= _MOST_KEYS:
                self._known.clear()
            self._known[name] = (now, access)
        return access


@dataclass
class ApiState:
    """Everything a route may need."""

    settings: Settings
    database: AsyncEngine
    redis: Redis
    streams: EventStreams
    blobs: Blobs
    live: LiveEvents
    publisher: PublishingThread
    access: AccessCache
    backlog: Backlog
    memory: MemoryAlarm
    tokenizers: Tokenizers = field(default_factory=Tokenizers)


def state_of(request: Request) -> ApiState:
    """Return the process's state."""
    return cast(ApiState, request.app.state.headrace)
