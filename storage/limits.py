"""Rate limits' buckets in Redis, and their configuration in Postgres.

GCRA: a bucket is one number, the moment at which it will be full again (`t`); drawing n units moves it by n times
the time that a unit takes to come back (`i`), and is refused where that is further away than the whole bucket
takes to fill. One script looks at all buckets of a request and draws from all or from none, by Redis's clock, so
that any number of API processes count as one. What it stores lets `give_back` return units by the bucket's name.

A bucket that Redis lost is full; one that was drawn from for nothing fills by itself. Units: µs.

Source: ITU-T I.371 (GCRA); the virtual scheduling form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from core.limits import Bucket, Level, RateLimit, Unit
from storage.money_tables import rate_limits
from storage.paging import Page, read_page

_MINUTE_US = 60_000_000

# ARGV: the moment ('' for now), then interval, burst and cost of each bucket. Returns the longest wait (0: drawn),
# then for each bucket the units left in thousandths, rounded down by who reads it, and the time until it is full.
_TAKE = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local wait, ends = 0, {}
for i = 1, #KEYS do
  local interval, burst, cost = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local t = math.max(tonumber(redis.call('HGET', KEYS[i], 't') or '0'), now)
  ends[i] = {t, t + cost * interval}
  wait = math.max(wait, ends[i][2] - now - burst * interval)
end
if wait < 1 then wait = 0 end -- less than the clock tells
local answer = {string.format('%.0f', math.ceil(wait))}
for i = 1, #KEYS do
  local interval, burst = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local t = ends[i][wait == 0 and 2 or 1]
  if wait == 0 then
    redis.call('HSET', KEYS[i], 't', string.format('%.3f', t), 'i', ARGV[3 * i - 1])
    redis.call('PEXPIRE', KEYS[i], math.ceil((t - now) / 1000) + 1000)
  end
  answer[#answer + 1] = string.format('%.3f', burst - (t - now) / interval)
  answer[#answer + 1] = string.format('%.0f', t - now)
end
return answer
"""

_GIVE_BACK = """
for i = 1, #KEYS do
  local bucket = redis.call('HMGET', KEYS[i], 't', 'i')
  if bucket[1] then
    redis.call('HSET', KEYS[i], 't', string.format('%.3f', bucket[1] - ARGV[1] * bucket[2]))
  end
end
return 0
"""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of a draw. `wait_s` 0: drawn from every bucket; else from none, and when it may succeed."""

    wait_s: float
    levels: dict[Bucket, Level]


@dataclass(frozen=True, slots=True)
class Reserved:
    """Tokens reserved for a task in its buckets."""

    tenant_id: str
    key_id: str
    model: str
    tokens: int


class RateLimiter:
    """The buckets under one key prefix. Raises from `take`: redis.exceptions.RedisError."""

    def __init__(self, redis: Redis, key_prefix: str) -> None:
        self._redis, self._prefix = redis, key_prefix
        self._digest: str | None = None

    async def take(
        self,
        buckets: Sequence[Bucket],
        *,
        tenant_id: str,
        key_id: str,
        model: str,
        tokens: int,
        now_us: int | None = None,
    ) -> Drawn:
        """Draw one request and its tokens, in one round trip. `now_us`: in place of the server's clock."""
        keys = [_key(self._prefix, bucket, tenant_id, key_id, model) for bucket in buckets]
        arguments: list[Any] = ["" if now_us is None else now_us]
        for bucket in buckets:
            cost = tokens if bucket.unit is Unit.TOKENS else 1
            arguments += (repr(_MINUTE_US / bucket.per_minute), bucket.burst, cost)
        answer = await self._run(keys, arguments)
        numbers = [float(one) for one in answer]
        levels = {
            bucket: Level(max(0, int(numbers[1 + 2 * i] + 1e-3)), numbers[2 + 2 * i] / 1e6)
            for i, bucket in enumerate(buckets)
        }
        return Drawn(numbers[0] / 1e6, levels)

    async def give_back(self, reserved: Reserved, unused: int) -> None:
        """Return tokens that were not used after all."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            queue_give_back(pipeline, self._prefix, reserved, unused)
            await pipeline.execute()

    async def _run(self, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        if self._digest is None:
            self._digest = await self._redis.script_load(_TAKE)
        try:
            return await self._redis.evalsha(self._digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return await self._redis.eval(_TAKE, len(keys), *keys, *arguments)


def queue_give_back(pipeline: Pipeline, key_prefix: str, reserved: Reserved, unused: int) -> None:
    """Add the return of unused tokens to a round trip that is made anyway."""
    owners = [Bucket(owner, Unit.TOKENS, 1, 1) for owner in ("key", "tenant", "model")]
    keys = [_key(key_prefix, one, reserved.tenant_id, reserved.key_id, reserved.model) for one in owners]
    pipeline.eval(_GIVE_BACK, len(keys), *keys, unused)


def _key(prefix: str, bucket: Bucket, tenant_id: str, key_id: str, model: str) -> str:
    owner = {"key": key_id, "tenant": tenant_id, "model": f"{tenant_id}:{model}"}[bucket.owner]
    return f"{prefix}:l:{bucket.name}:{owner}"


async def limits_of(connection: AsyncConnection, tenant_id: str, key_id: str) -> list[RateLimit]:
    """The limits that hold for a key: its own, and its tenant's."""
    rows = await connection.execute(
        sa.select(rate_limits).where(
            rate_limits.c.tenant_id == tenant_id,
            sa.or_(rate_limits.c.key_id.is_(None), rate_limits.c.key_id == key_id),
        )
    )
    return [limit_of(row) for row in rows]


def limit_of(row: Any) -> RateLimit:
    """Build from a row of `rate_limits`."""
    return RateLimit(**{name: getattr(row, name) for name in RateLimit.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class StoredLimit:
    """A row of limits, as administrators see it."""

    id: str
    tenant_id: str
    key_id: str | None
    model: str | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    burst_requests: int | None
    burst_tokens: int | None
    created_at: datetime


def _stored(row: Any) -> StoredLimit:
    return StoredLimit(**{name: getattr(row, name) for name in StoredLimit.__dataclass_fields__})


async def find_limit(
    connection: AsyncConnection, tenant_id: str, key_id: str | None, model: str | None
) -> StoredLimit | None:
    """Read the limits of one owner and lock them until the transaction ends."""
    query = sa.select(rate_limits).where(
        rate_limits.c.tenant_id == tenant_id,
        rate_limits.c.key_id.is_not_distinct_from(key_id),
        rate_limits.c.model.is_not_distinct_from(model),
    )
    row = (await connection.execute(query.with_for_update())).one_or_none()
    return _stored(row) if row else None


async def put_limit(
    connection: AsyncConnection,
    limit_id: str,
    *,
    tenant_id: str,
    key_id: str | None,
    model: str | None,
    rates: dict[str, Any],
) -> StoredLimit:
    """Set the limits of one owner; those that it has keep their id."""
    query = (
        insert(rate_limits)
        .values(id=limit_id, tenant_id=tenant_id, key_id=key_id, model=model, **rates)
        .on_conflict_do_update(constraint="uq_rate_limits_owner", set_=rates)
        .returning(rate_limits)
    )
    return _stored((await connection.execute(query)).one())


async def delete_limit(connection: AsyncConnection, limit_id: str) -> StoredLimit | None:
    """Delete limits and return them; None when there are none."""
    query = sa.delete(rate_limits).where(rate_limits.c.id == limit_id).returning(rate_limits)
    row = (await connection.execute(query)).one_or_none()
    return _stored(row) if row else None


async def list_limits(
    connection: AsyncConnection, page: Page, *, tenant_id: str | None
) -> tuple[list[StoredLimit], bool]:
    """List limits, of one tenant or of all, and whether there are more."""
    query = sa.select(rate_limits)
    if tenant_id is not None:
        query = query.where(rate_limits.c.tenant_id == tenant_id)
    rows, has_more = await read_page(connection, query, rate_limits.c.id, page)
    return [_stored(row) for row in rows], has_more
