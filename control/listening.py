"""Hearing from the other processes that there is something to do, rather than at the next look."""

import asyncio
from collections.abc import Callable, Mapping

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from storage.wakes import News, heard

log = structlog.get_logger()
_AGAIN_S = 0.5


async def listen(redis: Redis, key_prefix: str, wake: Mapping[News, Callable[[], None]]) -> None:
    """Wake whom each piece of news concerns, until cancelled."""
    while True:
        try:
            async for news in heard(redis, key_prefix):
                wake[news]()
        except (RedisError, OSError) as error:
            log.warning("news_not_heard", error=str(error))
        await asyncio.sleep(_AGAIN_S)
