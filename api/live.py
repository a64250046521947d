"""Events of tasks as they happen: one channel and one Redis connection a process, however many streams are open.

A process notes beside a task's stream that it follows it; whoever appends tells each such process, in one message
for everything that a step of an engine appended. A follower first reads what is stored, then what it hears; a gap (a
message lost while the connection was down) is closed from the stored stream. A stream that fell silent although its
task ended (its worker died between settling and saying so) is noticed by asking Postgres about all silent tasks
at once.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from api.listener import Listener
from runtime.metrics import STREAMS_OPEN
from schemas import events
from services.measure import final_states
from storage.streams import Event, EventStreams

_SILENT_S = 3.0  # after this a task's row is asked whether it ended
_SWEEP_S = 1.0
_GRACE_S = 15.0  # for the worker of an ended task to say so itself
_RETRY_S = 0.5  # between two reads of a store that is away
_FOLLOW_AGAIN_S = 30.0  # notes of silent streams are written again: Redis may have lost them
log = structlog.get_logger()

READ_AGAIN = Event(0, "read again", b"")  # to a follower: it may have missed something
SILENCE = Event(0, "silence", b"")


class Follower:
    """What one open stream has heard and not yet taken, and a watch on its silence."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Event] = asyncio.Queue()
        self.heard_at = time.monotonic()  # of the newest live event
        self._told_at = self.heard_at  # of whatever the stream's reader was last told
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, event: Event, now: float) -> None:
        """Take a live event."""
        self.heard_at = self._told_at = now
        self.queue.put_nowait(event)

    def told(self) -> None:
        """The reader was told something: its silence begins anew."""
        self._told_at = time.monotonic()

    def watch(self, silence_s: float) -> None:
        """Queue a SILENCE each time the reader heard nothing for that long: a timer a silence, none an event."""
        now = time.monotonic()
        left_s = self._told_at + silence_s - now
        if left_s <= 0:
            self.queue.put_nowait(SILENCE)
            self._told_at, left_s = now, silence_s
        self._timer = asyncio.get_running_loop().call_later(left_s, self.watch, silence_s)

    def rest(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()


class LiveEvents:
    """Subscriptions of this process."""

    def __init__(self, redis: Redis, streams: EventStreams, database: AsyncEngine) -> None:
        self._streams = streams
        self._database = database
        self._name = secrets.token_hex(6)
        self._followers: dict[str, list[Follower]] = {}
        self._listener = Listener(
            redis,
            streams.live_channel(self._name),
            on_message=self._heard,
            on_connected=self._follow_all,
        )
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read. Redis may be away: the reader goes on trying."""
        STREAMS_OPEN.set_function(lambda: float(len(self._followers)))
        self._sweeping = asyncio.create_task(self._sweep())
        await self._listener.start()

    async def stop(self) -> None:
        """Close the connection."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._listener.stop()

    @asynccontextmanager
    async def subscription(self, task_id: str) -> AsyncIterator["Subscription"]:
        """Hold a subscription; what is appended after entering is not missed. Raises: RedisError."""
        if not self._listener.connected:
            raise RedisError("Redis is away")
        follower = Follower()
        self._followers.setdefault(task_id, []).append(follower)
        try:
            await self._streams.follow(self._name, [task_id])
            yield Subscription(task_id, follower, self._streams)
        finally:
            followers = self._followers[task_id]
            followers.remove(follower)
            if not followers:
                del self._followers[task_id]
                with suppress(RedisError):  # the note ends with the stream's time
                    await self._streams.unfollow(self._name, task_id)

    def _heard(self, message: bytes) -> None:
        now = time.monotonic()
        try:
            for task_id, event in self._streams.parse_live(message):
                for follower in self._followers.get(task_id, ()):
                    follower.hear(event, now)
        except ValueError as error:
            log.error("live_message_unreadable", error=str(error))
            self._read_again()

    async def _follow_all(self) -> None:
        await self._streams.follow(self._name, list(self._followers))
        self._read_again()

    def _read_again(self) -> None:
        for followers in self._followers.values():
            for follower in followers:
                follower.queue.put_nowait(READ_AGAIN)

    async def _sweep(self) -> None:
        since: dict[str, float] = {}  # when an ended task's silence was first seen
        followed_at = time.monotonic()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            silent = [
                task_id
                for task_id, followers in self._followers.items()
                if any(follower.heard_at < now - _SILENT_S for follower in followers)
            ]
            try:
                if now - followed_at > _FOLLOW_AGAIN_S and self._listener.connected:
                    followed_at = now
                    await self._streams.follow(self._name, silent)
                ended = await final_states(self._database, silent) if silent else {}
            except Exception as error:  # noqa: BLE001 - a store may be away; the next round asks again
                log.warning("sweep_failed", error=str(error))
                continue
            # Its worker may still be about to say so, after its last text: it goes on trying while Redis is
            # full or away. Only a worker that died in between never will.
            since = {task_id: since.get(task_id, now) for task_id in ended}
            for task_id, state in ended.items():
                if now - since[task_id] < _GRACE_S:
                    continue
                for follower in self._followers.get(task_id, ()):
                    follower.queue.put_nowait(READ_AGAIN)
                    follower.hear(Event(0, events.FINAL[state], b""), now)  # its number is not known


class Subscription:
    """One follower of one task."""

    def __init__(self, task_id: str, follower: Follower, streams: EventStreams) -> None:
        self.task_id = task_id
        self._follower = follower
        self._streams = streams

    async def events(self, after: int, silence_s: float) -> AsyncIterator[Event | None]:
        """Yield events above `after` in order and without gap, up to the final one.

        None is yielded each time the stream was silent for `silence_s`. A final event with empty data says
        that the task ended without saying so in the stream: read its row, and do not take the text for whole.
        """
        follower, last = self._follower, after
        follower.told()
        follower.watch(silence_s)
        try:
            found = await self._stored(last, silence_s)
            while True:
                for event in found:
                    last = event.sequence
                    yield event
                    follower.told()
                    if event.type in events.FINAL_STATES:
                        return
                found = []
                event = await follower.queue.get()
                if event.sequence == last + 1:
                    found = [event]
                elif event is SILENCE:
                    yield None
                elif event is READ_AGAIN or event.sequence > last:
                    found = await self._stored(last, silence_s)
                elif event.sequence == 0:  # told by the sweep
                    yield Event(last + 1, event.type, b"")
                    return
        finally:
            follower.rest()

    async def _stored(self, after: int, timeout_s: float) -> list[Event]:
        """Read the store; while Redis is away, ask to be sent here again.

        Nothing is lost by that: the task's row tells of its end.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._streams.read(self.task_id, after)
        except (RedisError, TimeoutError):
            asyncio.get_running_loop().call_later(_RETRY_S, self._follower.queue.put_nowait, READ_AGAIN)
            return []
