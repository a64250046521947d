"""One Redis connection subscribed to any number of channels, made anew whenever it breaks.

The client's own reconnecting is not safe while several coroutines use one connection: a subscribe that meets
a reconnect fails with whatever the torn state gives. So a connection that shows any fault is thrown away, and
its successor subscribes to all that is wanted at once.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

_CONFIRM_S = 5.0  # for the server's answer to a subscribe
_CONNECT_S = 2.0  # at the start, before requests are served without live events
_RETRY_S = 0.2
log = structlog.get_logger()


class Channels:
    """`on_message` gets (channel, data); `on_subscribed` hears of a channel each time it begins to listen."""

    def __init__(
        self,
        redis: Redis,
        idle_channel: str,
        *,
        on_message: Callable[[bytes, bytes], None],
        on_subscribed: Callable[[bytes], None],
    ) -> None:
        self._redis = redis
        self._idle = idle_channel.encode()  # nobody publishes there: a connection must listen to something
        self._on_message, self._on_subscribed = on_message, on_subscribed
        self._wanted: dict[bytes, asyncio.Event] = {}  # set while the server has confirmed it
        self._pubsub: PubSub | None = None  # None while there is no connection
        self._writing = asyncio.Lock()
        self._connected = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen. Redis may be away: the reader goes on trying."""
        self._reader = asyncio.create_task(self._read_all())
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_S):
                await self._connected.wait()

    async def stop(self) -> None:
        """Close the connection."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def subscribe(self, channel: bytes) -> None:
        """Listen to a channel; return once the server has confirmed it. Raises: RedisError."""
        confirmed = self._wanted.get(channel)
        if confirmed is None:
            confirmed = self._wanted[channel] = asyncio.Event()
            if not self._connected.is_set():
                raise RedisError("Redis is away")
            await self._write("subscribe", channel)
        try:
            async with asyncio.timeout(_CONFIRM_S):
                await confirmed.wait()
        except TimeoutError as error:
            raise RedisError("no answer to a subscription") from error

    async def unsubscribe(self, channel: bytes) -> None:
        """Listen to a channel no more."""
        if self._wanted.pop(channel, None) is not None:
            await self._write("unsubscribe", channel)

    async def _write(self, command: str, channel: bytes) -> None:
        async with self._writing:
            pubsub = self._pubsub
            if pubsub is None:
                return  # the next connection subscribes to all that is wanted
            try:
                await getattr(pubsub, command)(channel)
            except Exception as error:  # noqa: BLE001 - the client raises anything while its connection breaks
                log.warning("channels_not_changed", error=f"{type(error).__name__}: {error}")
                await _close(pubsub)  # the reader notices and makes another

    async def _read_all(self) -> None:
        while True:
            pubsub = self._redis.pubsub()
            try:
                async with self._writing:
                    await pubsub.subscribe(self._idle, *self._wanted)
                    self._pubsub = pubsub
                self._connected.set()
                while True:
                    message: Any = await pubsub.get_message(timeout=60)
                    if message is not None:
                        self._dispatch(message)
            except Exception as error:  # noqa: BLE001 - a reader that ended would leave the process deaf
                log.warning("channels_lost", error=f"{type(error).__name__}: {error}")
            finally:
                self._pubsub = None
                self._connected.clear()
                for confirmed in self._wanted.values():
                    confirmed.clear()
                await _close(pubsub)
            await asyncio.sleep(_RETRY_S)

    def _dispatch(self, message: dict[str, Any]) -> None:
        channel = message["channel"]
        if message["type"] == "message":
            self._on_message(channel, message["data"])
        elif message["type"] == "subscribe" and channel in self._wanted:
            self._wanted[channel].set()
            self._on_subscribed(channel)


async def _close(pubsub: PubSub) -> None:
    with suppress(Exception):
        await pubsub.aclose()  # type: ignore[no-untyped-call]
