"""One trace a task, as a collector gets it."""

import json
import time
from dataclasses import dataclass

import httpx
import pytest

from cli.client import Client, chat_body
from core.traces import TraceContext, span_id_of, trace_of
from tests.support.otlp import Otlp, Received
from tests.support.receiver import Receiver
from tests.support.stacks import SharedStack
from tests.support.waiting import eventually

CALLERS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PHASES = ("prefill", "decode", "settle")
ALL = ("admit", "queue_wait", "attempt", *PHASES)


@dataclass
class Streamed:
    """A streamed call as its caller saw it."""

    task_id: str
    trace_id: str
    took_s: float


async def stream(stack: SharedStack, body: dict[str, object], **headers: str) -> Streamed:
    """Make a call and read it to its end."""
    async with httpx.AsyncClient(base_url=stack.api_url, headers=stack.headers, timeout=60) as client:
        await client.get("/v1/models")  # the connection and the key are known: neither is measured
        began = time.perf_counter()
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            assert answer.status_code == 200
            text = (await answer.aread()).decode()
        took_s = time.perf_counter() - began
    assert text.rstrip().endswith("data: [DONE]")
    return Streamed(answer.headers["X-Headrace-Task-Id"], answer.headers["X-Headrace-Trace-Id"], took_s)


def check_tree(streamed: Streamed, spans: list[Received], output_tokens: int) -> None:
    """The span tree of a task of one attempt, without gaps and as long as its caller waited."""
    by_name = {span.name: span for span in spans}
    assert sorted(span.name for span in spans) == sorted(ALL)
    admit, attempt = by_name["admit"], by_name["attempt"]
    assert {by_name["queue_wait"].parent_id, attempt.parent_id} == {admit.span_id}
    assert {by_name[name].parent_id for name in PHASES} == {attempt.span_id}
    assert admit.service == "headrace-api"
    assert {span.service for span in spans if span is not admit} == {"headrace-worker"}
    assert {span.attributes["headrace.task.id"] for span in spans} == {streamed.task_id}
    assert not [span for span in spans if span.error]

    within_s = sum(by_name[name].took_s for name in PHASES)
    assert within_s == pytest.approx(attempt.took_s, abs=1e-6)
    total_s = admit.took_s + by_name["queue_wait"].took_s + attempt.took_s
    whole_s = (attempt.end_ns - admit.start_ns) / 1e9
    assert total_s == pytest.approx(whole_s, abs=max(0.005, 0.02 * whole_s)), (
        "a gap between spans, or an overlap"
    )

    marks = [about["gen_ai.usage.output_tokens"] for name, _, about in by_name["decode"].events]
    assert marks == list(range(32, output_tokens + 1, 32))
    elapsed = [about["headrace.elapsed_ms"] for _, _, about in by_name["decode"].events]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] <= by_name["decode"].took_s * 1000
    assert attempt.attributes["gen_ai.usage.output_tokens"] == output_tokens
    assert attempt.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert (admit.trace_id, admit.span_id, {"headrace.link": "request"}) in attempt.links


async def check_calls(stack: SharedStack, otlp: Otlp, prompt: str, output_tokens: int) -> None:
    """Every call's spans follow one another without a gap, and are what its caller waited for.

    The caller shares the machine with other tests, and waits for them too: one undisturbed call is enough, and
    calls are made until there is one.
    """
    body = chat_body(stack.model, prompt, max_tokens=output_tokens) | {"stream": True, "ignore_eos": True}
    unseen_s: list[float] = []
    deadline = time.monotonic() + 90
    while len(unseen_s) < 5 or time.monotonic() < deadline:
        streamed = await stream(stack, body)
        spans = await otlp.trace(streamed.trace_id, *ALL)
        check_tree(streamed, spans, output_tokens)
        told_s = sum(span.took_s for span in spans if span.name in ("admit", "queue_wait", "attempt"))
        unseen_s.append(abs(streamed.took_s - told_s))
        if unseen_s[-1] <= max(0.005, 0.02 * streamed.took_s):
            return
    raise AssertionError(f"callers waited for what no span tells: {unseen_s} s")


async def test_a_streamed_task_is_one_trace_whose_times_add_up(
    deterministic_stack: SharedStack, otlp: Otlp
) -> None:
    await check_calls(deterministic_stack, otlp, "Trace me.", 150)


@pytest.mark.vllm
async def test_a_streamed_task_of_the_real_model_is_one_trace_whose_times_add_up(
    vllm_stack: SharedStack, otlp: Otlp
) -> None:
    await check_calls(vllm_stack, otlp, "Tell me a story.", 100)


async def test_the_callers_trace_is_continued_and_named_in_the_answer(
    deterministic_stack: SharedStack, otlp: Otlp
) -> None:
    stack = deterministic_stack
    body = chat_body(stack.model, "Trace me too.", max_tokens=4) | {"stream": True}
    streamed = await stream(stack, body, traceparent=CALLERS)
    callers = TraceContext.parse(CALLERS)
    assert callers is not None
    assert streamed.trace_id == callers.trace_id_hex
    spans = await otlp.trace(streamed.trace_id, *ALL)
    admit = next(span for span in spans if span.name == "admit")
    assert admit.parent_id == f"{callers.span_id:016x}"
    assert admit.span_id == f"{span_id_of(streamed.task_id, 'admit'):016x}"


async def test_a_cancelled_task_ends_its_spans(deterministic_stack: SharedStack, otlp: Otlp) -> None:
    stack = deterministic_stack
    body = chat_body(stack.model, "Stop me.", max_tokens=3000) | {"ignore_eos": True}
    async with httpx.AsyncClient(base_url=stack.api_url, headers=stack.headers, timeout=30) as client:
        asked = {"url": "/v1/chat/completions", "body": body}
        answer = await client.post("/v1/tasks", json=asked)
        task_id, trace_id = answer.json()["id"], answer.headers["X-Headrace-Trace-Id"]
        async with Client(stack.api_url, stack.api_key) as following:
            async for event in following.events(task_id):
                if event.type == "task.delta":
                    await client.post(f"/v1/tasks/{task_id}/cancel")
    spans = {span.name: span for span in await otlp.trace(trace_id, *ALL)}
    assert spans["attempt"].attributes["headrace.state"] == "cancelled"
    assert spans["decode"].end_ns <= spans["attempt"].end_ns


async def test_a_refused_request_has_an_error_and_no_text_in_its_trace(
    deterministic_stack: SharedStack, otlp: Otlp
) -> None:
    stack = deterministic_stack
    async with httpx.AsyncClient(base_url=stack.api_url, headers=stack.headers, timeout=30) as client:
        asked = {"url": "/v1/chat/completions", "body": chat_body(stack.model, "<<fault:refuse>>")}
        answer = await client.post("/v1/tasks", json=asked, headers={"Prefer": "wait=20"})
    assert answer.json()["status"] == "failed"
    spans = await otlp.trace(answer.headers["X-Headrace-Trace-Id"], "admit", "queue_wait", "attempt")
    attempt = next(span for span in spans if span.name == "attempt")
    assert attempt.error == "request_rejected"
    assert attempt.attributes["error.type"] == "request_rejected"
    assert not any("fault:refuse" in span.raw for span in spans)


async def test_the_delivery_of_a_webhook_belongs_to_the_tasks_trace(
    deterministic_stack: SharedStack, otlp: Otlp
) -> None:
    stack = deterministic_stack
    async with (
        Receiver() as receiver,
        httpx.AsyncClient(base_url=stack.api_url, headers=stack.headers, timeout=30) as client,
    ):
        assert (await client.post("/v1/webhooks/secrets", json={})).status_code == 201
        asked = {
            "url": "/v1/chat/completions",
            "body": chat_body(stack.model, "Tell me when it is done.", max_tokens=4),
            "webhook": receiver.url,
        }
        answer = await client.post("/v1/tasks", json=asked)
        await receiver.received(1)
    spans = await otlp.trace(answer.headers["X-Headrace-Trace-Id"], *ALL, "deliver")
    by_name = {span.name: span for span in spans}
    deliver = by_name["deliver"]
    assert deliver.service == "headrace-control"
    assert deliver.parent_id == by_name["admit"].span_id
    assert deliver.attributes["http.response.status_code"] == 200
    assert deliver.start_ns >= by_name["attempt"].start_ns


async def test_items_of_a_batch_link_to_the_batch(deterministic_stack: SharedStack, otlp: Otlp) -> None:
    stack = deterministic_stack
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": chat_body(stack.model, f"Line {number}.", max_tokens=4),
        }
        for number in range(3)
    ]
    async with httpx.AsyncClient(base_url=stack.api_url, headers=stack.headers, timeout=30) as client:
        content = "\n".join(json.dumps(line) for line in lines).encode()
        stored = await client.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("input.jsonl", content)}
        )
        asked = {
            "input_file_id": stored.json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        batch_id = (await client.post("/v1/batches", json=asked)).json()["id"]
    whole = trace_of(batch_id, "batch", sampled=True)
    (batch,) = await otlp.trace(whole.trace_id_hex, "batch", within_s=40)
    assert batch.attributes["headrace.batch.lines"] == 3

    def items() -> list[Received]:
        admits = [span for span in otlp.spans if span.name == "admit"]
        return [span for span in admits if span.attributes.get("headrace.batch.id") == batch_id]

    await eventually(lambda: len(items()) == 3, what="the items' spans")
    assert len({item.trace_id for item in items()}) == 3
    for item in items():
        assert item.links == [(batch.trace_id, batch.span_id, {"headrace.link": "batch"})]
        await otlp.trace(item.trace_id, *ALL)
