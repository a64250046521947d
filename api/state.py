"""What the API process holds: built at start-up, reached from routes by `state_of`."""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from api.live import LiveEvents
from core.lanes import Lane
from runtime.chat_template import ModelTokenizer
from runtime.publishing import PublishingThread
from runtime.settings import Settings
from services.authenticate import Access, authenticate
from services.measure import count_queued
from storage.depths import memory_share
from storage.records import Model
from storage.streams import EventStreams

_FRESH_S = 1.0  # for how long a key, its grants and the backlog are taken as known
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


class Backlog:
    """Queued tasks by lane, at most a second old."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database
        self._counts: dict[tuple[str, str, str], int] = {}
        self._at = 0.0
        self._lock = asyncio.Lock()

    async def of(self, lane: Lane) -> int:
        """Return how many tasks wait in a lane."""
        if time.monotonic() - self._at > _FRESH_S:
            async with self._lock:
                if time.monotonic() - self._at > _FRESH_S:
                    self._counts = await count_queued(self._database)
                    self._at = time.monotonic()
        return self._counts.get((lane.model, lane.length_class, lane.priority), 0)


class MemoryAlarm:
    """Are the Redis servers nearly full? At most a second old.

    A full server (noeviction) loses what a worker popped: nothing more is accepted before it is.
    """

    def __init__(self, servers: Sequence[Redis], share: float) -> None:
        self._servers, self._share = servers, share
        self._full = False
        self._at = 0.0

    async def full(self) -> bool:
        """Say whether one is above the alarm. A server that is away is not full."""
        now = time.monotonic()
        if now - self._at > _FRESH_S:
            self._at = now  # before asking: of many requests one asks
            try:
                shares = [await memory_share(server) for server in self._servers]
            except RedisError:
                shares = []
            self._full = any(share > self._share for share in shares)
        return self._full


class Tokenizers:
    """Tokenizers of the models in use, loaded once each, off the event loop."""

    def __init__(self) -> None:
        self._loaded: dict[str, ModelTokenizer] = {}
        self._lock = asyncio.Lock()

    async def get(self, model: Model) -> ModelTokenizer:
        """Return the tokenizer in a model's folder. Raises: OSError, ValueError for a bad folder."""
        if model.path not in self._loaded:
            async with self._lock:
                if model.path not in self._loaded:
                    self._loaded[model.path] = await asyncio.to_thread(ModelTokenizer, model.path)
        return self._loaded[model.path]


@dataclass
class ApiState:
    """Everything a route may need."""

    settings: Settings
    database: AsyncEngine
    redis: Redis
    streams: EventStreams
    live: LiveEvents
    publisher: PublishingThread
    access: AccessCache
    backlog: Backlog
    memory: MemoryAlarm
    tokenizers: Tokenizers = field(default_factory=Tokenizers)


def state_of(request: Request) -> ApiState:
    """Return the process's state."""
    return cast(ApiState, request.app.state.headrace)
