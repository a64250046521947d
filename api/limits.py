"""Rate limits and budgets at admission: who is over one is refused with 429.

A request draws from every bucket that it falls under, or from none.
"""

import asyncio
from dataclasses import replace

import structlog
from redis.exceptions import RedisError

from api.answer_headers import add_headers, drop_headers
from api.state import ApiState
from core.budgets import warning_of
from core.limits import Unit, buckets_of, describe, retry_after_s, too_large
from runtime.metrics import LIMITS_UNCHECKED
from schemas.errors import RequestError, overloaded
from services.authenticate import Access
from services.hold import BudgetExhaustedError
from storage.limits import Reserved
from storage.records import NewTask

log = structlog.get_logger()
_MOST_S = 1.0  # that a request waits for Redis here


async def draw(state: ApiState, access: Access, new: NewTask) -> NewTask:
    """Draw the request and its tokens, prompt and all it may generate; return the task that knows of them.

    Without a limit this does nothing. Raises: RequestError 429; 503 where Redis is away and the setting says so.
    """
    buckets = buckets_of(access.limits, new.lane.model)
    if not buckets:
        return new
    tokens = new.prompt_tokens + new.max_output_tokens * new.choices
    never = too_large(buckets, tokens)
    if never is not None:
        raise RequestError(
            429,
            f"The request may need {tokens} tokens, and the {never.owner}'s limit on tokens holds {never.burst}.",
            "request_too_large",
            headers={"x-should-retry": "false"},
        )
    try:
        async with asyncio.timeout(_MOST_S):
            drawn = await state.limiter.take(
                buckets,
                tenant_id=new.caller.tenant_id,
                key_id=new.caller.key_id,
                model=new.lane.model,
                tokens=tokens,
            )
    except (RedisError, OSError) as error:
        if state.settings.limits_fail == "closed":
            raise overloaded("Rate limits can't be checked now.", "limits_unavailable", 2) from error
        LIMITS_UNCHECKED.inc()
        log.warning("limits_unchecked", error=f"{type(error).__name__}: {error}")
        return new
    add_headers(describe(drawn.levels))
    if drawn.wait_s:
        after_s = retry_after_s(drawn.wait_s)
        raise RequestError(
            429,
            f"Rate limit reached; a request of this size fits again in {drawn.wait_s:.3g} s.",
            "rate_limit_exceeded",
            headers={"Retry-After": str(after_s), "retry-after-ms": str(round(min(drawn.wait_s, 60) * 1000))},
        )
    if any(bucket.unit is Unit.TOKENS for bucket in buckets):
        return replace(new, reserved_tokens=tokens)
    return new


def warn(access: Access) -> None:
    """Tell in the answer of budgets past their soft threshold."""
    warning = warning_of(access.budgets)
    if warning is not None:
        add_headers({"X-Headrace-Budget-Warning": warning})


def exhausted(error: BudgetExhaustedError) -> RequestError:
    """What the caller of a spent budget is told: waiting does not help, so no limit is told of."""
    drop_headers()
    return RequestError(
        429,
        f"The budget is exhausted: {error.standing.describe()}.",
        "budget_exhausted",
        headers={"x-should-retry": "false"},
    )


async def put_back(state: ApiState, new: NewTask) -> None:
    """Return what was drawn for a task that was not accepted after all."""
    if new.reserved_tokens is None:
        return
    reserved = Reserved(new.caller.tenant_id, new.caller.key_id, new.lane.model, new.reserved_tokens)
    try:
        await state.limiter.give_back(reserved, new.reserved_tokens)
    except (RedisError, OSError) as error:
        log.warning("tokens_not_returned", error=f"{type(error).__name__}: {error}")
