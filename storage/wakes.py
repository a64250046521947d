"""Telling the control process at once that there is something to do, over a channel of the broker.

It would find out by itself a moment later: a word that gets lost costs no more than that.

Raises: redis.exceptions.RedisError, OSError.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from enum import StrEnum

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError


class News(StrEnum):
    """What there is to do."""

    TASKS = "tasks"  # some wait for the dispatcher
    BATCHES = "batches"  # one was made, is to be cancelled, or may have ended


_KNOWN = frozenset(News)


def tell(redis: Redis, key_prefix: str, news: News) -> None:
    """Tell it; blocking."""
    redis.publish(channel(key_prefix), news)


async def heard(redis: AsyncRedis, key_prefix: str) -> AsyncIterator[News]:
    """Yield what is told, until the connection breaks."""
    pubsub = redis.pubsub(ignore_subscribe_messages=True)
    try:
        await pubsub.subscribe(channel(key_prefix))
        while True:
            message = await pubsub.get_message(timeout=60)
            word = None if message is None else message["data"].decode()
            if word in _KNOWN:  # others are of another version
                yield News(word)
    finally:
        with suppress(RedisError, OSError):
            await pubsub.aclose()  # type: ignore[no-untyped-call]


def channel(key_prefix: str) -> str:
    """Its name."""
    return f"{key_prefix}:waiting"
