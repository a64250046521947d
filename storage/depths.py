"""What the broker holds, counted: messages waiting in queues, and messages held by workers.

It reads keys that kombu's Redis transport keeps: a list a queue and one hash of unacknowledged messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis


async def memory_share(redis: Redis) -> float:
    """Return used ÷ maximum memory of a server, 0 where it has no maximum. Raises: RedisError."""
    info: dict[str, int] = await redis.info("memory")
    return info["used_memory"] / info["maxmemory"] if info.get("maxmemory") else 0.0


@dataclass(frozen=True, slots=True)
class Depths:
    """Messages at one moment."""

    waiting: dict[str, int]  # by queue
    held: int  # delivered and not yet acknowledged, over all queues


class BrokerDepths:
    """Reads depths under the broker's key prefix. Raises: redis.exceptions.RedisError."""

    def __init__(self, redis: Redis, key_prefix: str) -> None:
        self._redis = redis
        self._prefix = f"{key_prefix}:q:"

    async def read(self, queues: Sequence[str]) -> Depths:
        """Count in one round trip."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for queue in queues:
                pipeline.llen(self._prefix + queue)
            pipeline.hlen(f"{self._prefix}unacked")
            *waiting, held = await pipeline.execute()
        return Depths(dict(zip(queues, waiting, strict=True)), held)
