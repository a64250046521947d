"""What the API process holds: built at start-up, reached from routes by `state_of`."""

from dataclasses import dataclass, field
from typing import cast

from fastapi import Request
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from api.access import AccessCache
from api.aside import Aside
from api.live import LiveEvents
from runtime.admission import Admission
from runtime.capacity import MemoryAlarm
from runtime.ended import Endings
from runtime.publishing import PublishingThread
from runtime.settings import Settings
from runtime.tokenizers import Tokenizers
from storage.blobs import Blobs
from storage.limits import RateLimiter
from storage.records import Task
from storage.streams import EventStreams


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
    admission: Admission
    memory: MemoryAlarm
    limiter: RateLimiter
    deliveries: Aside
    endings: Endings
    tokenizers: Tokenizers = field(default_factory=Tokenizers)

    def note_delivered(self, task: Task) -> None:
        """Take down that who asked for a final task has its bodies: of one that is not stored they go soon."""
        if not task.store:
            self.deliveries.note(task.id)


def state_of(request: Request) -> ApiState:
    """Return the process's state."""
    return cast(ApiState, request.app.state.headrace)
