"""How much may be published at once, without asking who is next: kept by the control process in the broker.

For each model and priority there is a ceiling: publishing is free while the messages in the priority's queues
and those that workers hold stay below it. With a backlog it is 0 and everything waits for the dispatcher. A
ceiling that nobody renewed is gone, and publishing is free: without control, tasks run first come, first served.

Of tenants that run as many tasks as they may, or have work waiting for that, nothing is published at once at all.

Raises: redis.exceptions.RedisError.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from core.lanes import LengthClass, Priority
from storage.outbox import Outgoing
from storage.wakes import News, tell

LASTS_S = 5.0
_KNOWN_S = 0.1  # for how long what is left of a credit is spent without asking again
_ASK_AGAIN_S = 0.01  # once it is spent


class _Keys:
    def __init__(self, key_prefix: str) -> None:
        self.ceilings = f"{key_prefix}:ceilings:"  # + model: a hash of priorities
        self.waiting = f"{key_prefix}:q:"  # + queue: a list of kombu's
        self.held = f"{key_prefix}:q:unacked"  # a hash of kombu's
        self.held_tenants = f"{key_prefix}:held-tenants"  # a JSON list of ids


class Credit:
    """The publisher's side; blocking, for its thread."""

    def __init__(self, redis: Redis, key_prefix: str) -> None:
        self._redis, self._prefix, self._keys = redis, key_prefix, _Keys(key_prefix)
        self._known: dict[tuple[str, Priority], list[Any]] = {}  # when asked, and what is left
        self._held_tenants: frozenset[str] = frozenset()  # when last asked

    def split(self, outgoing: Sequence[Outgoing]) -> tuple[list[Outgoing], list[Outgoing]]:
        """Say which may be published now, in order, and which wait for the dispatcher."""
        free, held_back = list[Outgoing](), list[Outgoing]()
        unsent = Counter[tuple[str, Priority]]()  # chosen here, so not to be seen in the broker yet
        for one in outgoing:
            pool = (one.lane.model, one.lane.priority)
            left = self._left(*pool, unsent=unsent[pool])
            if one.tenant_id in self._held_tenants or (left is not None and left < 1):
                held_back.append(one)
                continue
            free.append(one)
            unsent[pool] += 1
            if left is not None:
                self._known[pool][1] = left - 1
        return free, held_back

    def _left(self, model: str, priority: Priority, *, unsent: int) -> int | None:
        """What may be published; None: any number. Spent from what was known a moment ago, asked for anew after."""
        now = time.monotonic()
        known = self._known.get((model, priority))
        if known is not None:
            asked_at: float = known[0]
            left: int | None = known[1]
            spent = left is not None and left < 1
            if now - asked_at < (_ASK_AGAIN_S if spent else _KNOWN_S):
                return left
        left = self._ask(model, priority)
        left = None if left is None else left - unsent
        self._known[model, priority] = [now, left]
        return left

    def _ask(self, model: str, priority: Priority) -> int | None:
        queues = [f"{model}.{length_class}.{priority}" for length_class in LengthClass]
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hget(self._keys.ceilings + model, priority)
            pipeline.hlen(self._keys.held)
            for queue in queues:
                pipeline.llen(self._keys.waiting + queue)
            pipeline.get(self._keys.held_tenants)
            ceiling, *there, held_tenants = pipeline.execute()
        self._held_tenants = frozenset(orjson.loads(held_tenants) if held_tenants else ())
        return None if ceiling is None else int(ceiling) - sum(there)

    def tell(self, news: News) -> None:
        """Tell the control process that there is something to do."""
        tell(self._redis, self._prefix, news)

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()


class Ceilings:
    """The control process's side."""

    def __init__(self, redis: AsyncRedis, key_prefix: str) -> None:
        self._redis, self._keys = redis, _Keys(key_prefix)

    async def held(self) -> int:
        """Count messages that workers hold, over all models."""
        return int(await self._redis.hlen(self._keys.held))

    async def put(
        self, ceilings: Mapping[str, Mapping[Priority, int]], held_tenants: Sequence[str] = ()
    ) -> None:
        """Set ceilings by model, and whose tasks are not published at all; they last for `LASTS_S`."""
        lasts_ms = round(LASTS_S * 1000)
        async with self._redis.pipeline(transaction=False) as pipeline:
            for model, by_priority in ceilings.items():
                values: Any = {str(priority): most for priority, most in by_priority.items()}
                pipeline.hset(self._keys.ceilings + model, mapping=values)
                pipeline.pexpire(self._keys.ceilings + model, lasts_ms)
            if held_tenants:
                pipeline.set(self._keys.held_tenants, orjson.dumps(list(held_tenants)), px=lasts_ms)
            else:
                pipeline.delete(self._keys.held_tenants)
            await pipeline.execute()
