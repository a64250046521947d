"""What the processes of a running platform count."""

import httpx

from cli.client import Client, chat_body
from tests.observability.scrapes import scrape
from tests.support.stacks import SharedStack
from tests.support.waiting import eventually_async

OF_TASK = {"length_class": "short", "priority": "standard", "tenant_class": "default"}


async def test_a_task_is_counted_from_its_acceptance_to_its_ledger_entry(
    deterministic_stack: SharedStack,
) -> None:
    stack = deterministic_stack
    before = await scrape(stack)
    async with Client(stack.api_url, stack.api_key) as client:
        task = await client.submit(chat_body(stack.model, "Count me.", max_tokens=20))
        task = await client.wait(task.id)
    assert task.usage is not None and task.cost_usd_micros is not None
    after = await scrape(stack)
    expected = {
        "headrace_tasks_accepted_total": 1.0,
        "headrace_tasks_ended_total": 1.0,
        "headrace_ttft_seconds_count": 1.0,
        "headrace_tpot_seconds_count": 1.0,
        "headrace_queue_wait_seconds_count": 1.0,
        "headrace_end_to_end_seconds_count": 1.0,
        "headrace_prefill_seconds_count": 1.0,
        "headrace_ledger_cost_usd_micros_total": float(task.cost_usd_micros),
    }
    labels = OF_TASK | {"model": stack.model}
    told = {name: after.value(name, **labels) - before.value(name, **labels) for name in expected}
    assert told == expected
    for kind, tokens in (("prompt", task.usage.prompt_tokens), ("output", task.usage.completion_tokens)):
        for name in ("headrace_task_tokens_total", "headrace_ledger_tokens_total"):
            grown = after.value(name, kind=kind, **labels) - before.value(name, kind=kind, **labels)
            assert grown == tokens, (name, kind)
    seconds = "headrace_end_to_end_seconds_sum"
    assert task.timings.total_ms is not None
    took_s = after.value(seconds, **labels) - before.value(seconds, **labels)
    assert abs(took_s - task.timings.total_ms / 1000) < 0.1


async def test_the_engine_counts_its_steps_and_shows_what_runs(deterministic_stack: SharedStack) -> None:
    stack = deterministic_stack
    before = await scrape(stack, "worker")
    async with Client(stack.api_url, stack.api_key) as client:
        body = chat_body(stack.model, "Take your time.", max_tokens=3000) | {"ignore_eos": True}
        task = await client.submit(body)

        async def runs() -> bool:
            now = await scrape(stack, "worker")
            return (
                now.value("headrace_engine_running_requests") >= 1
                and 0 < now.value("headrace_engine_batch_fill_ratio") <= 1
                and now.value("headrace_worker_running_tasks") >= 1
            )

        await eventually_async(runs, what="the request is seen in the engine")

        async def counted() -> bool:
            now = await scrape(stack, "control")
            return now.value("headrace_in_flight_tasks", model=stack.model) >= 1

        await eventually_async(counted, what="the control process counts it")
        await client.cancel(task.id)
        await client.wait(task.id)
    after = await scrape(stack, "worker")
    steps = "headrace_engine_steps_total"
    assert after.value(steps) > before.value(steps)
    assert after.value("headrace_engine_step_seconds_count") > before.value(
        "headrace_engine_step_seconds_count"
    )
    output = {"name": "headrace_engine_tokens_total", "kind": "output"}
    assert after.value(**output) > before.value(**output)
    assert after.value("headrace_engine_max_num_seqs") > 1


async def test_the_control_process_says_that_it_leads_and_what_its_loops_do(
    deterministic_stack: SharedStack,
) -> None:
    found = await scrape(deterministic_stack, "control")
    assert found.value("headrace_control_leading") == 1
    for loop in ("rescue", "dispatch", "recount", "expiry", "figures"):
        assert found.value("headrace_control_ticks_total", loop=loop, outcome="ok") > 0, loop
        assert found.value("headrace_control_ticks_total", loop=loop, outcome="failed") == 0, loop


async def test_refusals_are_counted_by_reason_and_requests_by_route_template(
    deterministic_stack: SharedStack,
) -> None:
    stack = deterministic_stack
    before = await scrape(stack, "api")
    async with httpx.AsyncClient(base_url=stack.api_url, headers=stack.headers) as client:
        for number in range(3):
            await client.get(f"/v1/tasks/task_{number}")
            await client.get(f"/nowhere/{number}")
    after = await scrape(stack, "api")

    def grown(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    assert grown("headrace_refusals_total", reason="task_not_found") == 3
    requests = "headrace_http_requests_total"
    assert grown(requests, route="/v1/tasks/{task_id}", method="GET", status="404") == 3
    assert grown(requests, route="unmatched", status="404") == 3


async def test_metrics_are_for_this_machine_unless_a_token_opens_them(
    deterministic_stack: SharedStack,
) -> None:
    async with httpx.AsyncClient() as client:
        for url in deterministic_stack.run.metrics_urls.values():
            refused = await client.get(url, headers={"X-Forwarded-For": "203.0.113.7"})
            assert refused.status_code == 403, url
            assert "headrace_" not in refused.text
