"""Every end is counted, logged and traced, also where no worker is there to do it."""

import json
from collections import Counter
from typing import Any

import httpx

from cli.stack.ports import free_port
from tests.chaos.lab import Lab
from tests.observability.scrapes import Scrape
from tests.support.otlp import Otlp
from tests.support.waiting import eventually


def ended_lines(lab: Lab) -> list[dict[str, Any]]:
    """`task_ended` of all processes that there were."""
    lines = [line for child in lab.children for line in child.log().splitlines() if '"task_ended"' in line]
    return [json.loads(line) for line in lines]


async def test_each_end_is_told_once_by_whoever_ended_the_task(lab: Lab, otlp: Otlp) -> None:
    control_port, worker_port = free_port(), free_port()
    lab.settings |= {
        "HEADRACE_TRACE_TO": otlp.url,
        "HEADRACE_TRACE_SHARE": "0",  # what failed is kept
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "HEADRACE_MAX_NUM_SEQS": "2",
        "HEADRACE_MAX_RUNNING_LONG": "2",
        "HEADRACE_RESERVED_SLOTS": "0",
    }
    await lab.start_api()
    await lab.start("control", "control", HEADRACE_METRICS_PORT=str(control_port))
    await lab.start_worker("w1", HEADRACE_METRICS_PORT=str(worker_port))
    headers = {"Authorization": f"Bearer {lab.api_key}"}
    async with httpx.AsyncClient(base_url=lab.api_url, headers=headers, timeout=30) as client:

        async def submit(text: str, tokens: int, **more: object) -> tuple[str, str]:
            messages = [{"role": "user", "content": text}]
            body = {"model": lab.model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
            answer = await client.post(
                "/v1/tasks", json={"url": "/v1/chat/completions", "body": body, **more}
            )
            assert answer.status_code == 202, answer.text
            return answer.json()["id"], answer.headers["X-Headrace-Trace-Id"]

        short, _ = await submit("A short one.", 4)
        await eventually(lambda: [line["task_id"] for line in ended_lines(lab)] == [short], 20, "it ended")
        running = [await submit(f"Run {number}.", 2000) for number in range(2)]
        await lab.running_on("w1", at_least=2, emitted=1)
        late, late_trace = await submit("Too late.", 4, deadline_s=1)
        unwanted, _ = await submit("Not wanted.", 4)
        workers = Scrape((await client.get(f"http://127.0.0.1:{worker_port}/metrics")).text)
        await lab.child("w1").kill()
        assert (await client.post(f"/v1/tasks/{unwanted}/cancel")).status_code == 200
        await lab.start_worker("w2")  # where the lost ones go on
        ids = [task_id for task_id, _ in running]
        for task_id in ids:
            await eventually(
                lambda of=task_id: (
                    lab.query("SELECT attempt FROM tasks WHERE id = :id", id=of)[0].attempt == 2
                ),
                30,
                "the second attempt",
            )
        for task_id in ids:
            await client.post(f"/v1/tasks/{task_id}/cancel")
        await eventually(lambda: len(ended_lines(lab)) == 5, 30, "five ends are told")
        told = Counter((line["task_id"], line["process"], line["state"]) for line in ended_lines(lab))
        assert told == {
            (short, "worker", "completed"): 1,
            (late, "control", "expired"): 1,
            (unwanted, "api", "cancelled"): 1,
            (ids[0], "worker", "cancelled"): 1,
            (ids[1], "worker", "cancelled"): 1,
        }
        assert len({frozenset(line) for line in ended_lines(lab)}) == 1, "the same fields in all"
        hashes = [line["request_hash"] for line in ended_lines(lab)]
        assert all(hashes) and len(set(hashes)) == 5

        controls = Scrape((await client.get(f"http://127.0.0.1:{control_port}/metrics")).text)
        api = Scrape((await client.get("/metrics")).text)
    name = "headrace_tasks_ended_total"
    assert workers.value(name) == 1
    assert controls.value(name) == controls.value(name, state="expired", reason="deadline") == 1
    assert api.value(name) == api.value(name, state="cancelled") == 1
    assert controls.value("headrace_attempts_ended_total", outcome="lost", reason="lease_lost") == 2

    for _, trace_id in running:
        spans = await otlp.trace(trace_id, "attempt", "queue_wait", "admit")
        lost = next(span for span in spans if span.name == "attempt" and span.error)
        assert (lost.error, lost.service) == ("lease_lost", "headrace-control")
        assert lost.attributes["headrace.worker"] == "w1"
        assert lost.took_s > 0
    spans = await otlp.trace(late_trace, "settle", "queue_wait", "admit")
    assert {span.error for span in spans if span.name == "settle"} == {"deadline"}
