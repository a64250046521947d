"""arq: `python arq_jobs.py work | produce COUNT`."""

import asyncio
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import asyncpg
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func
from statements import CLAIM, PRODUCE, SETTLE

REDIS = RedisSettings.from_dsn(os.environ["PEER_REDIS_URL"])


async def run(pool: Any, statements: Sequence[str], job: str) -> None:
    """Run the statements of one transaction."""
    async with pool.acquire() as connection, connection.transaction():
        for statement in statements:
            await connection.execute(statement, job)


async def work(context: dict[str, Any], job: str) -> None:
    """Do one job."""
    await run(context["pool"], CLAIM, job)
    await run(context["pool"], SETTLE, job)


async def serve() -> None:
    """Be a worker."""
    pool = await asyncpg.create_pool(os.environ["PEER_DATABASE_URL"], min_size=8, max_size=8)
    worker = Worker(
        [func(work, keep_result=0)], redis_settings=REDIS, max_jobs=32, poll_delay=0.01, ctx={"pool": pool}
    )
    await worker.main()


async def produce(count: int) -> None:
    """Enqueue jobs, 16 at a time."""
    redis = await create_pool(REDIS)
    pool = await asyncpg.create_pool(os.environ["PEER_DATABASE_URL"], min_size=8, max_size=8)
    left = [uuid.uuid4().hex for _ in range(count)]

    async def place() -> None:
        while left:
            name = left.pop()
            await run(pool, PRODUCE, name)
            await redis.enqueue_job("work", name)

    await asyncio.gather(*(place() for _ in range(16)))


if __name__ == "__main__":
    asyncio.run(serve() if sys.argv[1] == "work" else produce(int(sys.argv[2])))
