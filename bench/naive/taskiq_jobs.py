"""taskiq on a Redis list: `python taskiq_jobs.py work | produce COUNT`."""

import asyncio
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import asyncpg
from statements import CLAIM, PRODUCE, SETTLE
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker

broker = ListQueueBroker(os.environ["PEER_REDIS_URL"], queue_name="peer-taskiq")
_pool: Any = None


async def run(statements: Sequence[str], job: str) -> None:
    """Run the statements of one transaction."""
    async with _pool.acquire() as connection, connection.transaction():
        for statement in statements:
            await connection.execute(statement, job)


@broker.task  # type: ignore[untyped-decorator, unused-ignore]
async def work(job: str) -> None:
    """Do one job."""
    await run(CLAIM, job)
    await run(SETTLE, job)


async def produce(count: int) -> None:
    """Enqueue jobs, 16 at a time."""
    left = [uuid.uuid4().hex for _ in range(count)]

    async def place() -> None:
        while left:
            name = left.pop()
            await run(PRODUCE, name)
            await work.kiq(name)

    await asyncio.gather(*(place() for _ in range(16)))


async def main() -> None:
    """Be a worker, or enqueue."""
    global _pool
    _pool = await asyncpg.create_pool(os.environ["PEER_DATABASE_URL"], min_size=8, max_size=8)
    if sys.argv[1] == "work":
        broker.is_worker_process = True
        await broker.startup()
        await run_receiver_task(broker, max_async_tasks=32)
    else:
        await broker.startup()
        await produce(int(sys.argv[2]))


if __name__ == "__main__":
    asyncio.run(main())
