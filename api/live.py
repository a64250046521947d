"""Events of tasks as they happen: one Redis connection a process, however many streams are open.

A follower first reads what is stored, then what is published; a gap (a message lost while the connection was
down) is closed from the stored stream. A stream that fell silent although its task ended (its worker died
between settling and saying so) is noticed by asking Postgres about all silent tasks at once.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from api.channels import Channels
from schemas import events
from services.measure import final_states
from storage.streams import Event, EventStreams, parse_live

_SILENT_S = 3.0  # after this a task's row is asked whether it ended
_SWEEP_S = 1.0
_GRACE_S = 15.0  # for the worker of an ended task to say so itself
_RETRY_S = 0.5  # between two reads of a store that is away
log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class _Follower:
    queue: asyncio.Queue[Event | None] = field(default_factory=asyncio.Queue)  # None: read the store again
    heard_at: float = field(default_factory=time.monotonic)


class LiveEvents:
    """Subscriptions of this process."""

    def __init__(self, redis: Redis, streams: EventStreams, database: AsyncEngine) -> None:
        self._streams = streams
        self._database = database
        self._followers: dict[bytes, list[_Follower]] = {}
        self._ids: dict[bytes, str] = {}
        self._channels = Channels(
            redis, streams.channel("idle"), on_message=self._heard, on_subscribed=self._may_have_missed
        )
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read. Redis may be away: the reader goes on trying."""
        self._sweeping = asyncio.create_task(self._sweep())
        await self._channels.start()

    async def stop(self) -> None:
        """Close the connection."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._channels.stop()

    @asynccontextmanager
    async def subscription(self, task_id: str) -> AsyncIterator["Subscription"]:
        """Hold a subscription; what is published after entering is not missed. Raises: RedisError."""
        channel = self._streams.channel(task_id).encode()
        follower = _Follower()
        self._followers.setdefault(channel, []).append(follower)
        self._ids[channel] = task_id
        try:
            await self._channels.subscribe(channel)
            follower.queue = asyncio.Queue()  # what came until now is stored, and that is read first
            yield Subscription(task_id, follower, self._streams)
        finally:
            followers = self._followers[channel]
            followers.remove(follower)
            if not followers:
                del self._followers[channel], self._ids[channel]
                await self._channels.unsubscribe(channel)

    def _heard(self, channel: bytes, data: bytes) -> None:
        event = parse_live(data)
        now = time.monotonic()
        for follower in self._followers.get(channel, ()):
            follower.heard_at = now
            follower.queue.put_nowait(event)

    def _may_have_missed(self, channel: bytes) -> None:
        for follower in self._followers.get(channel, ()):
            follower.queue.put_nowait(None)

    async def _sweep(self) -> None:
        since: dict[str, float] = {}  # when an ended task's silence was first seen
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            silent = {
                self._ids[channel]: channel
                for channel, followers in self._followers.items()
                if any(follower.heard_at < now - _SILENT_S for follower in followers)
            }
            try:
                ended = await final_states(self._database, list(silent)) if silent else {}
            except Exception as error:  # noqa: BLE001 - Postgres may be away; the next round asks again
                log.warning("sweep_failed", error=str(error))
                continue
            # Its worker may still be about to say so, after its last text: it goes on trying while Redis is
            # full or away. Only a worker that died in between never will.
            since = {task_id: since.get(task_id, now) for task_id in ended}
            for task_id, state in ended.items():
                if now - since[task_id] < _GRACE_S:
                    continue
                for follower in self._followers.get(silent[task_id], ()):
                    follower.heard_at = now
                    follower.queue.put_nowait(None)
                    follower.queue.put_nowait(Event(0, events.FINAL[state], b""))  # its number is not known


class Subscription:
    """One follower of one task."""

    def __init__(self, task_id: str, follower: _Follower, streams: EventStreams) -> None:
        self.task_id = task_id
        self._follower = follower
        self._streams = streams

    async def events(self, after: int, silence_s: float) -> AsyncIterator[Event | None]:
        """Yield events above `after` in order and without gap, up to the final one.

        None is yielded each time the stream was silent for `silence_s`. A final event with empty data says
        that the task ended without saying so in the stream: read its row, and do not take the text for whole.
        """
        last, behind = after, True  # behind: the store is to be read, at the start and after a gap
        heard_at = time.monotonic()
        while True:
            found: list[Event] | None = await self._stored(last, silence_s) if behind else []
            behind = found is None
            if not found:
                left_s = heard_at + silence_s - time.monotonic()
                try:
                    async with asyncio.timeout(min(left_s, _RETRY_S) if behind else left_s):
                        live = await self._follower.queue.get()
                except TimeoutError:
                    if time.monotonic() >= heard_at + silence_s:
                        yield None
                        heard_at = time.monotonic()
                    continue
                if live is not None and live.sequence == 0:  # told by the sweep
                    yield Event(last + 1, live.type, b"")
                    return
                if live is not None and live.sequence <= last:
                    continue
                behind = behind or live is None or live.sequence > last + 1
                if behind or live is None:
                    continue
                found = [live]
            for event in found:
                last = event.sequence
                yield event
                heard_at = time.monotonic()
                if event.type in events.FINAL_STATES:
                    return

    async def _stored(self, after: int, timeout_s: float) -> list[Event] | None:
        """Read the store; None while Redis is away, which loses nothing: its row tells of a task's end."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._streams.read(self.task_id, after)
        except (RedisError, TimeoutError):
            return None
