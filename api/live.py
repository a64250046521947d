"""Events of tasks as they happen: one Redis connection a process, however many streams are open.

A follower first reads what is stored, then what is published; a gap (a message lost while the connection was
down) is closed from the stored stream. A stream that fell silent although its task ended (its worker died
between settling and saying so) is noticed by asking Postgres about all silent tasks at once.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from schemas import events
from services.measure import final_states
from storage.streams import Event, EventStreams, parse_live

_SILENT_S = 3.0  # after this a task's row is asked whether it ended
_SWEEP_S = 1.0
_CONNECT_S = 2.0  # at the start, before requests are served without live events
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
        self._pubsub = redis.pubsub(ignore_subscribe_messages=False)
        self._followers: dict[bytes, list[_Follower]] = {}
        self._confirmed: dict[bytes, asyncio.Event] = {}
        self._ids: dict[bytes, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._connected = asyncio.Event()  # for the first time: the client can't connect twice at once

    @property
    def followed(self) -> int:
        """Streams open now."""
        return sum(len(followers) for followers in self._followers.values())

    async def start(self) -> None:
        """Begin to read. Redis may be away: the reader goes on trying."""
        self._tasks = [asyncio.create_task(self._read_all()), asyncio.create_task(self._sweep())]
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_S):
                await self._connected.wait()

    async def stop(self) -> None:
        """Close the connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(RedisError):
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]

    @asynccontextmanager
    async def subscription(self, task_id: str) -> AsyncIterator["Subscription"]:
        """Hold a subscription; what is published after entering is not missed. Raises: RedisError."""
        if not self._connected.is_set():
            raise RedisError("not connected yet")
        channel = self._streams.channel(task_id).encode()
        follower = _Follower()
        first = channel not in self._followers
        self._followers.setdefault(channel, []).append(follower)
        self._ids[channel] = task_id
        try:
            if first:
                self._confirmed[channel] = asyncio.Event()
                await self._pubsub.subscribe(channel)
            async with asyncio.timeout(5):
                await self._confirmed[channel].wait()
            follower.queue = asyncio.Queue()  # what came until now is stored, and that is read first
            yield Subscription(task_id, follower, self._streams)
        except TimeoutError as error:
            raise RedisError("no answer to a subscription") from error
        finally:
            followers = self._followers[channel]
            followers.remove(follower)
            if not followers:
                del self._followers[channel], self._confirmed[channel], self._ids[channel]
                with suppress(RedisError):
                    await self._pubsub.unsubscribe(channel)

    async def _read_all(self) -> None:
        while True:
            try:
                if not self._pubsub.subscribed:
                    # a channel nobody publishes on: the connection must be subscribed to something
                    await self._pubsub.subscribe(self._streams.channel("idle"))
                    self._connected.set()
                message = await self._pubsub.get_message(timeout=60)
                if message is not None:
                    self._dispatch(message)
            except (RedisError, OSError) as error:
                log.warning("live_events_lost", error=str(error))
                for confirmed in self._confirmed.values():
                    confirmed.clear()
                await asyncio.sleep(0.2)
                with suppress(RedisError, OSError):
                    await self._pubsub.connect()  # type: ignore[no-untyped-call] # subscribes again
            except Exception as error:  # noqa: BLE001 - a reader that ended would leave the process deaf
                log.error("live_event_not_read", error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)

    def _dispatch(self, message: dict[str, Any]) -> None:
        channel = message["channel"]
        if message["type"] == "message":
            for follower in self._followers.get(channel, ()):
                follower.heard_at = time.monotonic()
                follower.queue.put_nowait(parse_live(message["data"]))
        elif message["type"] == "subscribe" and channel in self._confirmed:
            self._confirmed[channel].set()
            for follower in self._followers.get(channel, ()):
                follower.queue.put_nowait(None)  # may have missed some while it was not subscribed

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            before = time.monotonic() - _SILENT_S
            silent = {
                self._ids[channel]: channel
                for channel, followers in self._followers.items()
                if any(follower.heard_at < before for follower in followers)
            }
            if not silent:
                continue
            try:
                ended = await final_states(self._database, list(silent))
            except Exception as error:  # noqa: BLE001 - Postgres may be away; the next round asks again
                log.warning("sweep_failed", error=str(error))
                continue
            for task_id, state in ended.items():
                for follower in self._followers.get(silent[task_id], ()):
                    follower.heard_at = time.monotonic()
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
        that the task ended without saying so in the stream: read its row.
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
