"""One Redis connection subscribed to one channel, made anew whenever it breaks.

The client's own reconnecting is not safe here: a subscription that meets a reconnect fails with whatever the torn
state gives. So a connection that shows any fault is thrown away.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

_CONNECT_S = 2.0  # at the start, before requests are served without live events
_RETRY_S = 0.2
log = structlog.get_logger()


class Listener:
    """`on_connected` runs each time the server has confirmed the subscription, before any message is read."""

    def __init__(
        self,
        redis: Redis,
        channel: str,
        *,
        on_message: Callable[[bytes], None],
        on_connected: Callable[[], Awaitable[None]],
    ) -> None:
        self._redis, self._channel = redis, channel
        self._on_message, self._on_connected = on_message, on_connected
        self._connected = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether messages are heard now."""
        return self._connected.is_set()

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

    async def _read_all(self) -> None:
        while True:
            pubsub = self._redis.pubsub()
            try:
                await pubsub.subscribe(self._channel)
                while True:
                    message: Any = await pubsub.get_message(timeout=60)
                    if message is None:
                        continue
                    if message["type"] == "message":
                        self._on_message(message["data"])
                    elif message["type"] == "subscribe":
                        await self._on_connected()
                        self._connected.set()
            except Exception as error:  # noqa: BLE001 - a reader that ended would leave the process deaf
                log.warning("live_events_lost", error=f"{type(error).__name__}: {error}")
            finally:
                self._connected.clear()
                await _close(pubsub)
            await asyncio.sleep(_RETRY_S)


async def _close(pubsub: PubSub) -> None:
    with suppress(Exception):
        await pubsub.aclose()  # type: ignore[no-untyped-call]
