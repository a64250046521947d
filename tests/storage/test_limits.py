"""The buckets of rate limits: exact arithmetic at given moments, on a real Valkey."""

from collections.abc import AsyncIterator, Sequence
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from core.limits import Bucket, RateLimit, Unit, buckets_of, describe, retry_after_s, too_large
from storage.limits import Drawn, RateLimiter, Reserved

NOW = 1_800_000_000_000_000  # µs
SECOND = 1_000_000


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def limiter(redis: Redis) -> RateLimiter:
    return RateLimiter(redis, "hr")


def requests(per_minute: int, burst: int | None = None, owner: str = "key") -> Bucket:
    return Bucket(owner, Unit.REQUESTS, per_minute, burst or per_minute)


def tokens(per_minute: int, burst: int | None = None, owner: str = "tenant") -> Bucket:
    return Bucket(owner, Unit.TOKENS, per_minute, burst or per_minute)


async def take(limiter: RateLimiter, *buckets: Bucket, at: int, wanted: int = 1) -> Drawn:
    return await limiter.take(
        buckets, tenant_id="t", key_id="k", model="org/m", tokens=wanted, now_us=NOW + at
    )


async def test_a_burst_is_admitted_to_the_last_and_not_one_more(limiter: RateLimiter) -> None:
    bucket = requests(60, burst=5)
    drawn = [await take(limiter, bucket, at=0) for _ in range(7)]
    assert [one.levels[bucket].remaining for one in drawn[:5]] == [4, 3, 2, 1, 0]
    assert [one.wait_s for one in drawn] == [0, 0, 0, 0, 0, 1, 1]


async def test_units_come_back_at_the_rate_and_not_sooner(limiter: RateLimiter) -> None:
    bucket = requests(60, burst=1)
    assert not (await take(limiter, bucket, at=0)).wait_s
    assert (await take(limiter, bucket, at=SECOND - 10)).wait_s == pytest.approx(1e-5)
    assert not (await take(limiter, bucket, at=SECOND)).wait_s


async def test_over_an_hour_the_rate_is_exact_whatever_the_callers_rhythm(limiter: RateLimiter) -> None:
    bucket = requests(7, burst=3)
    admitted = 0
    for second in range(3600):
        admitted += not (await take(limiter, bucket, at=second * SECOND + second * 7919 % 1000)).wait_s
    assert admitted == 3 + 7 * 60 - 1, "the last minute's last one comes after the hour"


async def test_one_full_bucket_refuses_and_nothing_is_drawn_from_the_others(limiter: RateLimiter) -> None:
    few, many = requests(60, burst=1), tokens(6000)
    await take(limiter, few, many, at=0, wanted=100)
    refused = await take(limiter, few, many, at=0, wanted=100)
    assert refused.wait_s == 1
    assert refused.levels[many].remaining == 5900
    assert (await take(limiter, many, at=0, wanted=0)).levels[many].remaining == 5900


async def test_the_longest_wait_is_told(limiter: RateLimiter) -> None:
    quick, slow = requests(60, burst=1), tokens(60, burst=30)
    await take(limiter, quick, slow, at=0, wanted=30)
    assert (await take(limiter, quick, slow, at=0, wanted=30)).wait_s == 30


async def test_what_was_reserved_and_not_used_comes_back(limiter: RateLimiter) -> None:
    bucket = tokens(1000)
    await take(limiter, bucket, at=0, wanted=900)
    assert (await take(limiter, bucket, at=0, wanted=500)).wait_s
    await limiter.give_back(Reserved("t", "k", "org/m", 900), 850)
    drawn = await take(limiter, bucket, at=0, wanted=500)
    assert (drawn.wait_s, drawn.levels[bucket].remaining) == (0, 450)


async def test_what_comes_back_late_makes_no_bucket_fuller_than_full(limiter: RateLimiter) -> None:
    bucket = tokens(1000)
    await take(limiter, bucket, at=0, wanted=900)
    await limiter.give_back(Reserved("t", "k", "org/m", 900), 900)
    await limiter.give_back(Reserved("t", "k", "org/m", 900), 900)
    assert (await take(limiter, bucket, at=90 * SECOND, wanted=1)).levels[bucket].remaining == 999


async def test_giving_back_to_no_bucket_makes_none(limiter: RateLimiter, redis: Redis) -> None:
    await limiter.give_back(Reserved("t", "k", "org/m", 900), 850)
    assert await redis.keys("*") == []


async def test_a_bucket_is_forgotten_once_it_is_full(limiter: RateLimiter, redis: Redis) -> None:
    await limiter.take([requests(60, burst=5)], tenant_id="t", key_id="k", model="m", tokens=1)
    (key,) = await redis.keys("hr:l:*")
    assert 1000 < await redis.pttl(key) <= 2000


async def test_keys_tenants_and_models_have_buckets_of_their_own(limiter: RateLimiter, redis: Redis) -> None:
    owners = [requests(60, owner=owner) for owner in ("key", "tenant", "model")]
    await take(limiter, *owners, at=0)
    assert sorted(await redis.keys("hr:l:*")) == [
        b"hr:l:requests-key:k",
        b"hr:l:requests-model:t:org/m",
        b"hr:l:requests-tenant:t",
    ]


class Reference:
    """The same arithmetic on exact numbers: units in the bucket, times 60 seconds in µs."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._at = bucket, 0
        self._full = self._held = bucket.burst * 60 * SECOND

    def refuses(self, at: int, count: int) -> bool | None:
        """Fill up to that moment, then say whether the draw must be refused; None: it hangs on 3 µs."""
        self._held = min(self._full, self._held + (at - self._at) * self._bucket.per_minute)
        self._at = at
        short = count * 60 * SECOND - self._held
        return None if abs(short) <= 3 * self._bucket.per_minute else short > 0

    def draw(self, count: int) -> None:
        self._held -= count * 60 * SECOND


_numbers = count(1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rate=st.integers(1, 100_000),
    burst=st.integers(1, 5_000),
    draws=st.lists(st.tuples(st.integers(0, 20 * SECOND), st.integers(1, 300)), min_size=1, max_size=30),
)
async def test_any_schedule_is_judged_as_exact_numbers_judge_it(
    limiter: RateLimiter, rate: int, burst: int, draws: Sequence[tuple[int, int]]
) -> None:
    bucket, tenant, at = tokens(rate, burst), f"t{next(_numbers)}", 0
    reference = Reference(bucket)
    for gap, wanted in draws:
        at += gap
        refuses = reference.refuses(at, wanted)
        drawn = await limiter.take(
            [bucket], tenant_id=tenant, key_id="k", model="m", tokens=wanted, now_us=NOW + at
        )
        assert refuses is None or bool(drawn.wait_s) == refuses
        if not drawn.wait_s:
            reference.draw(wanted)


def test_a_request_draws_from_every_limit_it_falls_under_and_no_other() -> None:
    limits = [
        RateLimit("1", key_id="k", requests_per_minute=5),
        RateLimit("2", requests_per_minute=50, tokens_per_minute=1000, burst_tokens=300),
        RateLimit("3", model="org/m", tokens_per_minute=100),
        RateLimit("4", model="org/other", requests_per_minute=1),
    ]
    assert buckets_of(limits, "org/m") == [
        Bucket("key", Unit.REQUESTS, 5, 5),
        Bucket("tenant", Unit.REQUESTS, 50, 50),
        Bucket("tenant", Unit.TOKENS, 1000, 300),
        Bucket("model", Unit.TOKENS, 100, 100),
    ]


async def test_headers_tell_of_every_bucket_and_the_old_ones_of_the_emptiest(limiter: RateLimiter) -> None:
    wide, narrow = tokens(6000), tokens(600, burst=100, owner="model")
    headers = describe((await take(limiter, wide, narrow, at=0, wanted=50)).levels)
    assert headers == {
        "RateLimit-Policy": '"tokens-tenant";q=6000;w=60, "tokens-model";q=100;w=10',
        "RateLimit": '"tokens-tenant";r=5950;t=1, "tokens-model";r=50;t=5',
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "50",
        "x-ratelimit-reset-tokens": "5.000s",
    }


def test_what_never_fits_is_told_apart_and_nobody_is_told_to_wait_for_more_than_a_minute() -> None:
    buckets = [requests(5), tokens(600, burst=100, owner="model")]
    assert too_large(buckets, 101) is buckets[1]
    assert too_large(buckets, 100) is None
    assert [retry_after_s(wait) for wait in (0.2, 1.5, 500)] == [1, 2, 60]
