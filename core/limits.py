"""Rate limits: how many requests and tokens a minute, and what a caller is told about them.

Each limit is a bucket: it holds `burst` units, and fills by `per_minute` a minute. The arithmetic (GCRA) is done
where the buckets are, in `storage.limits`.

Source: RateLimit header fields, draft-ietf-httpapi-ratelimit-headers-10; `x-ratelimit-*` as OpenAI sends them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

_MAX_RETRY_AFTER_S = 60  # what clients still wait for


class Unit(StrEnum):
    """What is counted."""

    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Rates of one key, of one tenant, or of one tenant on one model; None: not limited."""

    id: str
    key_id: str | None = None
    model: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    burst_requests: int | None = None  # None: a minute's worth
    burst_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """One limit on one unit. `name` is of its place in Redis and in headers: what it belongs to and counts."""

    owner: str  # key, tenant or model
    unit: Unit
    per_minute: int
    burst: int

    @property
    def name(self) -> str:
        return f"{self.unit}-{self.owner}"


@dataclass(frozen=True, slots=True)
class Level:
    """What a bucket holds after a request, and when it will be full."""

    remaining: int
    full_in_s: float


def buckets_of(limits: Iterable[RateLimit], model: str) -> list[Bucket]:
    """The buckets that a request for that model draws from."""
    found = []
    for limit in limits:
        if limit.model not in (None, model):
            continue
        owner = "key" if limit.key_id else "model" if limit.model else "tenant"
        if (rate := limit.requests_per_minute) is not None:
            found.append(Bucket(owner, Unit.REQUESTS, rate, limit.burst_requests or rate))
        if (rate := limit.tokens_per_minute) is not None:
            found.append(Bucket(owner, Unit.TOKENS, rate, limit.burst_tokens or rate))
    return found


def describe(levels: Mapping[Bucket, Level]) -> dict[str, str]:
    """Headers of an answer whose request drew from these buckets. `x-ratelimit-*` tell of the emptiest ones."""
    headers = {
        "RateLimit-Policy": ", ".join(
            f'"{bucket.name}";q={bucket.burst};w={ceil(60 * bucket.burst / bucket.per_minute)}'
            for bucket in levels
        ),
        "RateLimit": ", ".join(
            f'"{bucket.name}";r={level.remaining};t={ceil(level.full_in_s)}'
            for bucket, level in levels.items()
        ),
    }
    for unit in Unit:
        ours = [bucket for bucket in levels if bucket.unit is unit]
        if ours:
            tightest = min(ours, key=lambda bucket: levels[bucket].remaining / bucket.burst)
            headers[f"x-ratelimit-limit-{unit}"] = str(tightest.per_minute)
            headers[f"x-ratelimit-remaining-{unit}"] = str(levels[tightest].remaining)
            headers[f"x-ratelimit-reset-{unit}"] = f"{levels[tightest].full_in_s:.3f}s"
    return headers


def retry_after_s(wait_s: float) -> int:
    """Whole seconds after which it is worth asking again."""
    return max(1, min(ceil(wait_s), _MAX_RETRY_AFTER_S))


def too_large(buckets: Sequence[Bucket], tokens: int) -> Bucket | None:
    """The bucket that can never hold so many tokens, if there is one: waiting would not help."""
    return next((one for one in buckets if one.unit is Unit.TOKENS and one.burst < tokens), None)
