"""Stores that go away, come back, or lose their data."""

import os
import shutil
import signal

import httpx
import pytest

from cli.stack.process import signal_group
from tests.chaos.lab import Lab, Run
from tests.support.waiting import eventually, eventually_async


async def test_an_emptied_broker_loses_no_task(lab: Lab) -> None:
    await lab.start_worker("w1", HEADRACE_MAX_NUM_SEQS="8")
    run = Run(lab)
    await run.begin()

    def waiting() -> int:
        with lab.valkey.client(0) as client:
            queues = [key for key in client.keys("hr:q:*") if client.type(key) == b"list"]
            return sum(int(client.llen(queue)) for queue in queues)

    await eventually(lambda: waiting() > 0, what="messages wait in the broker")
    with lab.valkey.client(0) as client:
        client.flushdb()
    await run.finish()
    await run.check()


@pytest.mark.full
async def test_a_task_accepted_while_the_broker_is_away_runs_when_it_is_back(lab: Lab) -> None:
    await lab.start_worker("w1")
    lab.valkey.stop()
    run = Run(lab, count=100, max_tokens=8)
    await run.begin()
    lab.valkey.start()
    await run.finish(within_s=90)
    await run.check()


async def test_streams_answer_503_while_redis_is_away_and_tasks_can_still_be_polled(lab: Lab) -> None:
    lab.valkey.stop()
    headers = {"Authorization": f"Bearer {lab.api_key}"}
    async with httpx.AsyncClient(base_url=lab.api_url, headers=headers, timeout=30) as http:
        body = {"model": "deterministic", "messages": [{"role": "user", "content": "x"}]}
        task = (await http.post("/v1/tasks", json={"url": "/v1/chat/completions", "body": body})).json()
        followed = await http.get(f"/v1/tasks/{task['id']}/events")
        assert followed.status_code == 503
        assert int(followed.headers["retry-after"]) >= 1
        called = await http.post("/v1/chat/completions", json=body)
        assert called.status_code == 503
        assert (await http.get(f"/v1/tasks/{task['id']}")).json()["status"] == "queued"


@pytest.mark.full
async def test_a_worker_keeps_finished_results_while_postgres_is_away(lab: Lab) -> None:
    await lab.start_worker("w1")
    run = Run(lab, max_tokens=30)
    await run.begin()
    await lab.running_on("w1")
    lab.postgres.stop()
    headers = {"Authorization": f"Bearer {lab.api_key}"}
    async with httpx.AsyncClient(base_url=lab.api_url, headers=headers, timeout=30) as http:
        body = {"model": "deterministic", "messages": [{"role": "user", "content": "x"}]}

        async def refuses() -> bool:
            answer = await http.post("/v1/tasks", json={"url": "/v1/chat/completions", "body": body})
            return answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1

        await eventually_async(refuses, what="the API answers 503")
    lab.postgres.start()
    await run.finish(within_s=90)
    await run.check()


@pytest.mark.full
async def test_a_full_redis_refuses_at_admission_and_drops_nothing(lab: Lab) -> None:
    """Row 9: what waits in the broker meanwhile is popped and can't be noted as held."""
    await lab.start_worker("w1")
    run = Run(lab, max_tokens=20)
    await run.begin()
    with lab.valkey.client(0) as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used)
    headers = {"Authorization": f"Bearer {lab.api_key}"}
    async with httpx.AsyncClient(base_url=lab.api_url, headers=headers, timeout=30) as http:
        body = {"model": "deterministic", "messages": [{"role": "user", "content": "x"}]}

        async def refuses() -> bool:
            answer = await http.post("/v1/tasks", json={"url": "/v1/chat/completions", "body": body})
            return answer.status_code == 503 and answer.json()["error"]["code"] == "store_full"

        await eventually_async(refuses, what="admission refuses")
    with lab.valkey.client(0) as client:
        client.config_set("maxmemory", 0)
    async with lab.keeping_worker("w1"):  # a write to a full broker ends Celery's consumer
        await run.finish(within_s=90)
    await run.check()


@pytest.mark.full
async def test_a_redis_that_is_full_for_a_while_holds_text_back_and_loses_none(lab: Lab) -> None:
    await lab.start_worker("w1")
    run = Run(lab, count=30, max_tokens=60)
    await run.begin()
    await lab.running_on("w1")
    with lab.valkey.client(1) as client:
        client.config_set("maxmemory", 1_000_000)

        def settled() -> bool:
            return int(lab.query("SELECT count(*) FROM tasks WHERE state = 'completed'")[0][0]) >= 10

        await eventually(settled, 60.0, "tasks end while their text can't be written")
        client.config_set("maxmemory", 0)
    async with lab.keeping_worker("w1"):
        await run.finish(within_s=90)
    await run.check()


@pytest.mark.full
@pytest.mark.parametrize("keep_data", [True, False])
async def test_a_killed_valkey_costs_no_task(durable_lab: Lab, keep_data: bool) -> None:
    lab = durable_lab
    await lab.start_worker("w1")
    run = Run(lab, max_tokens=30)
    await run.begin()
    await lab.running_on("w1")
    os.kill(lab.valkey.pid or 0, signal.SIGKILL)
    lab.valkey.stop()
    if not keep_data:
        shutil.rmtree(lab.folder / "valkey")
    lab.valkey.start()
    await run.finish(within_s=90, streams_may_expire=not keep_data)
    await run.check(streams_may_expire=not keep_data)


@pytest.mark.full
async def test_a_killed_postgres_costs_no_task(durable_lab: Lab) -> None:
    lab = durable_lab
    await lab.start_worker("w1")
    run = Run(lab, max_tokens=30)
    await run.begin()
    await lab.running_on("w1")
    signal_group(lab.postgres.pid or 0, signal.SIGKILL)
    lab.postgres.stop()
    lab.postgres.start()
    await run.finish(within_s=90)
    await run.check()
