"""Rate limits over two API processes and one Valkey, as callers see them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.lab import MODEL, Lab, new_lab
from tests.support.waiting import eventually, eventually_async

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "How late is it?"}], "max_tokens": 4}
TASK = {"url": "/v1/chat/completions", "body": BODY}


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    """Stores and two API processes; nothing runs the tasks unless a test starts a worker."""
    lab = new_lab(tmp_path)
    try:
        await lab.prepare()
        await asyncio.gather(lab.start_api(), lab.start_api())
        yield lab
    finally:
        lab.stop()
        lab.valkey.stop()
        lab.postgres.stop()


async def limit(lab: Lab, **rates: int | str) -> None:
    """Set the tenant's limits and let every API process hear of them."""
    names = ", ".join(rates)
    values = ", ".join(f":{name}" for name in rates)
    lab.query(
        f"INSERT INTO rate_limits (id, tenant_id, {names}) SELECT 'limit', id, {values} FROM tenants"
        " WHERE name = 'default'",
        **rates,
    )
    for url in urls(lab):
        async with client(lab, url) as http:

            async def knows(http: httpx.AsyncClient = http) -> bool:
                return "ratelimit" in (await http.post("/v1/tasks", json=TASK)).headers

            await eventually_async(knows, what="the API knows of the limit")
    with lab.valkey.client(1) as redis:
        redis.delete(*redis.keys("hr:l:*"))


def urls(lab: Lab) -> list[str]:
    """Of the API processes."""
    ports = [
        child.program.argv[child.program.argv.index("--port") + 1]
        for child in lab.children
        if child.program.name == "api"
    ]
    return [f"http://127.0.0.1:{port}" for port in ports]


def client(lab: Lab, url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {lab.api_key}"}, timeout=30)


async def test_two_processes_admit_the_configured_rate_together(lab: Lab) -> None:
    per_minute, burst = 1200, 100  # callers that are held up for 5 s, on a busy machine, lose nothing
    await limit(lab, requests_per_minute=per_minute, burst_requests=burst)
    statuses: Counter[int] = Counter()

    async def ask(http: httpx.AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            statuses[(await http.post("/v1/tasks", json=TASK)).status_code] += 1

    async with client(lab, urls(lab)[0]) as one, client(lab, urls(lab)[1]) as two:
        assert (await one.post("/v1/tasks", json=TASK)).status_code == 202
        with lab.valkey.client(1) as redis:
            (key,) = redis.keys("hr:l:requests-tenant:*")
            began_s = float(redis.hget(key, "t")) / 1e6 - 60 / per_minute  # by Redis's clock
            began = time.monotonic()
            await asyncio.gather(*(ask(http, began + 6) for http in (one, two) for _ in range(5)))
            seconds, micros = redis.time()
            now_s = seconds + micros / 1e6
            left = burst - (float(redis.hget(key, "t")) / 1e6 - now_s) * per_minute / 60
    assert statuses.keys() == {202, 429}
    assert left < 20, "they asked for more than the rate"
    admitted = 1 + statuses[202] - burst + left  # beside the burst
    assert admitted / (now_s - began_s) * 60 == pytest.approx(per_minute, rel=0.01)


async def test_a_burst_at_both_processes_is_admitted_up_to_the_bound_and_never_more(lab: Lab) -> None:
    await limit(lab, requests_per_minute=6, burst_requests=30)
    async with client(lab, urls(lab)[0]) as one, client(lab, urls(lab)[1]) as two:
        answers = await asyncio.gather(
            *(http.post("/v1/tasks", json=TASK) for http in (one, two) for _ in range(30))
        )
    assert Counter(answer.status_code for answer in answers) == {202: 30, 429: 30}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-ratelimit-limit-requests"] == "6"
    assert refused.headers["ratelimit-policy"] == '"requests-tenant";q=30;w=300'
    accepted = [answer for answer in answers if answer.status_code == 202]
    assert sorted(int(answer.headers["x-ratelimit-remaining-requests"]) for answer in accepted) == list(
        range(30)
    )


async def test_reserved_tokens_come_back_once_the_task_has_ended(lab: Lab) -> None:
    await lab.start_worker("w1")
    await limit(lab, tokens_per_minute=60, burst_tokens=2000, model=MODEL)
    stops_early = BODY | {"max_tokens": 1500, "stop": [" "]}
    async with client(lab, lab.api_url) as http:
        answer = await http.post("/v1/chat/completions", json=stops_early)
        assert answer.status_code == 200, answer.text
        prompt = answer.json()["usage"]["prompt_tokens"]
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) == 2000 - 1500 - prompt
        used = answer.json()["usage"]["total_tokens"]

        def held() -> int:
            with lab.valkey.client(1) as redis:
                (key,) = redis.keys("hr:l:tokens-model:*")
                bucket = redis.hgetall(key)
            return round((float(bucket[b"t"]) / 1e6 - time.time()) * 60 / 60)

        await eventually(lambda: held() <= used, what="only what was used is drawn")
        assert held() >= used - 10
        too_large = await http.post("/v1/tasks", json=TASK | {"body": BODY | {"max_tokens": 1999}})
        assert (too_large.status_code, too_large.headers["x-should-retry"]) == (429, "false")
        assert too_large.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(("fail", "status"), [("open", 202), ("closed", 503)])
async def test_without_redis_limits_fail_as_the_setting_says(tmp_path: Path, fail: str, status: int) -> None:
    lab = new_lab(tmp_path, HEADRACE_LIMITS_FAIL=fail)
    try:
        await lab.prepare()
        await lab.start_api()
        await limit(lab, requests_per_minute=6)
        lab.valkey.stop()
        async with client(lab, lab.api_url) as http:
            answer = await http.post("/v1/tasks", json=TASK)
        assert answer.status_code == status, answer.text
    finally:
        lab.stop()
        lab.postgres.stop()
