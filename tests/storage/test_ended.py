"""Whoever ends a task counts it once, logs it once with the same fields, and reports the spans nobody else can."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from control.expiry import Expiry
from control.rescue import Rescue
from core.digests import digest_of
from core.failures import Failure
from core.lanes import Priority
from core.states import TaskState
from core.traces import TraceContext, span_id_of, trace_of
from runtime import metrics
from runtime.ended import Endings
from runtime.tracing import Span
from services.attempt import Holder, claim, set_exposed
from services.cancel import cancel, give_up
from services.submit import submit
from storage.records import Caller, NewTask
from storage.streams import EventStreams
from tests.support.seeds import MODEL, end_lease, new_task, opened
from tests.unit.test_traces import Kept, Recorder, run

KEY = b"log key"
SAMPLED = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)
UNSAMPLED = replace(SAMPLED, sampled=False)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def endings(database: AsyncEngine, kept: Kept) -> Endings:
    return Endings(database, KEY, kept)  # type: ignore[arg-type]


@pytest.fixture
async def streams(streams_url: str) -> AsyncIterator[EventStreams]:
    redis = Redis.from_url(streams_url)
    yield EventStreams(redis, "hr", 60)
    await redis.aclose()


async def queued(
    database: AsyncEngine, caller: Caller, context: TraceContext = UNSAMPLED, **options: Any
) -> NewTask:
    new = new_task(caller, **options)
    new = replace(new, traceparent=str(context.of_task(new.id, "admit")))
    await submit(database, new)
    return new


def counted(state: TaskState, reason: str) -> float:
    """Tasks of any lane that this process has counted as ended so."""
    return sum(
        value
        for (name, labels), value in metrics.values().items()
        if name == "headrace_tasks_ended_total" and {("state", str(state)), ("reason", reason)} <= set(labels)
    )


def ended_lines(lines: Sequence[Any], new: NewTask) -> list[Any]:
    return [line for line in lines if line["event"] == "task_ended" and line["task_id"] == new.id]


def by_name(kept: Kept) -> dict[str, Span]:
    assert len({span.context.span_id for span in kept.spans}) == len(kept.spans), "a span was reported twice"
    return {span.name: span for span in kept.spans}


async def claimed(database: AsyncEngine, new: NewTask) -> None:
    assert new.id in await claim(database, [new.id], Holder("w1", MODEL, 30.0))


async def test_a_task_whose_deadline_passed_is_told_once_and_with_the_fields_of_any_other(
    database: AsyncEngine, caller: Caller, streams: EventStreams, endings: Endings, kept: Kept
) -> None:
    new = await queued(database, caller, deadline_s=-1.0, request='{"messages":["é"]}')
    before = counted(TaskState.EXPIRED, "deadline")
    with capture_logs() as lines:
        expiry = Expiry(database, streams, endings)
        assert await expiry() == {"expired": 1}
        assert await expiry() == {"expired": 0}
    assert counted(TaskState.EXPIRED, "deadline") == before + 1
    (line,) = ended_lines(lines, new)
    assert (line["state"], line["failure"], line["attempt"], line["worker"]) == (
        TaskState.EXPIRED,
        Failure.DEADLINE,
        0,
        None,
    )
    assert line["request_bytes"] == len(new.request.encode())
    assert line["request_hash"] == digest_of(new.request, KEY).hex()[:16]
    assert line["trace_id"] == SAMPLED.trace_id_hex
    assert line["total_ms"] == line["queued_ms"] and line["run_ms"] == 0
    spans = by_name(kept)
    assert sorted(spans) == ["admit", "queue_wait", "settle"], "unsampled, and kept since it failed"
    assert spans["settle"].error == spans["queue_wait"].error == "deadline"
    request = TraceContext.parse(new.traceparent)
    assert spans["settle"].parent == request == spans["admit"].context
    assert spans["queue_wait"].end_ns == spans["settle"].end_ns

    kept.spans.clear()
    recorder = Recorder(worker="w", hash_key=KEY, slow_share=0.99, tracer=kept)  # type: ignore[arg-type]
    with capture_logs() as lines:
        run(recorder, SAMPLED)
    (workers,) = [one for one in lines if one["event"] == "task_ended"]
    assert list(workers) == list(line), "one line, whoever writes it"


async def test_a_queued_task_that_is_cancelled_or_given_up_is_told_once(
    database: AsyncEngine, caller: Caller, endings: Endings, kept: Kept
) -> None:
    cancelled, given_up = await queued(database, caller, SAMPLED), await queued(database, caller)
    before = counted(TaskState.CANCELLED, "none"), counted(TaskState.FAILED, "not_started_in_time")
    with capture_logs() as lines:
        assert await cancel(database, caller.tenant_id, cancelled.id) is TaskState.CANCELLED
        await endings.tell([cancelled.id])
        assert await give_up(database, given_up.id, Failure.NOT_STARTED_IN_TIME)
        await endings.tell([given_up.id])
    after = counted(TaskState.CANCELLED, "none"), counted(TaskState.FAILED, "not_started_in_time")
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1]
    assert len(ended_lines(lines, cancelled)) == len(ended_lines(lines, given_up)) == 1
    of_cancelled = [span for span in kept.spans if span.attributes["headrace.task.id"] == cancelled.id]
    assert sorted(span.name for span in of_cancelled) == ["queue_wait", "settle"], "admit is the API's"
    assert not [span for span in of_cancelled if span.error]


async def test_an_attempt_that_lost_its_lease_has_a_span_and_the_next_one_links_to_it(
    database: AsyncEngine, caller: Caller, streams: EventStreams, endings: Endings, kept: Kept
) -> None:
    new = await queued(database, caller, SAMPLED)
    await claimed(database, new)
    await end_lease(database, new.id)
    woken: list[bool] = []
    with capture_logs() as lines:
        assert await Rescue(database, streams, endings, lambda: woken.append(True))() == {
            "requeued": 1,
            "ended": 0,
        }
    assert woken, "the dispatcher publishes it at once"
    assert ended_lines(lines, new) == []
    assert [line["worker"] for line in lines if line["event"] == "lease_lost"] == ["w1"]
    spans = by_name(kept)
    assert sorted(spans) == ["attempt", "queue_wait"]
    attempt = spans["attempt"]
    assert (attempt.error, attempt.attributes["error.type"]) == ("lease_lost", "lease_lost")
    assert attempt.context.span_id == span_id_of(new.id, "attempt.1")
    assert attempt.parent == TraceContext.parse(new.traceparent)
    assert spans["queue_wait"].end_ns == attempt.start_ns < attempt.end_ns
    ((name, _, _),) = attempt.events
    assert name == "lease_expired"


async def test_a_task_that_ran_out_of_attempts_is_told_once_with_its_last_attempt(
    database: AsyncEngine, caller: Caller, streams: EventStreams, endings: Endings, kept: Kept
) -> None:
    new = await queued(database, caller, max_attempts=2)
    before = counted(TaskState.FAILED, "worker_lost")
    rescue = Rescue(database, streams, endings, lambda: None)
    with capture_logs() as lines:
        for attempt in (1, 2):
            await claimed(database, new)
            await set_exposed(database, new.id, attempt, True)
            await end_lease(database, new.id)
            await rescue()
        await rescue()
    assert counted(TaskState.FAILED, "worker_lost") == before + 1
    (line,) = ended_lines(lines, new)
    assert (line["attempt"], line["worker"], line["cost_usd_micros"]) == (2, "w1", 0)
    attempts = [span for span in kept.spans if span.name == "attempt"]
    assert [span.attributes["headrace.attempt"] for span in attempts] == [1, 2]
    assert {span.error for span in attempts} == {"lease_lost"}
    (settle,) = [span for span in kept.spans if span.name == "settle"]
    assert settle.parent == attempts[1].context
    assert settle.error == "worker_lost"
    assert settle.end_ns == attempts[1].end_ns


async def test_an_item_of_a_batch_links_to_its_batch_whoever_reports_it(
    database: AsyncEngine, caller: Caller, streams: EventStreams, endings: Endings, kept: Kept
) -> None:
    new = await queued(database, caller, deadline_s=-1.0, priority=Priority.BATCH)
    async with database.begin() as connection:
        await connection.execute(
            sa.text(
                "INSERT INTO batches (id, tenant_id, key_id, endpoint, completion_window, output_ttl_s, expires_at,"
                " input_file_id, input_bytes) VALUES ('batch_1', :tenant, :key, '/v1/chat/completions', '24h', 60,"
                " now(), 'file_1', 1)"
            ),
            {"tenant": caller.tenant_id, "key": caller.key_id},
        )
        await connection.execute(
            sa.text(
                "INSERT INTO batch_items (batch_id, line, custom_id, task_id) VALUES ('batch_1', 1, 'a', :id)"
            ),
            {"id": new.id},
        )
    await Expiry(database, streams, endings)()
    admit = by_name(kept)["admit"]
    assert admit.links == [(trace_of("batch_1", "batch", sampled=True), {"headrace.link": "batch"})]


async def test_what_could_not_be_read_is_told_with_the_next(
    database: AsyncEngine, caller: Caller, endings: Endings
) -> None:
    first, second = await queued(database, caller), await queued(database, caller)
    for new in (first, second):
        await cancel(database, caller.tenant_id, new.id)
    async with opened("postgresql://nobody@127.0.0.1:1/nowhere") as away:
        cut_off = Endings(away, KEY, None)
        with capture_logs() as lines:
            await cut_off.tell([first.id])
        assert [line["event"] for line in lines] == ["ends_not_told"]
        cut_off._database = database
        with capture_logs() as lines:
            await cut_off.tell([second.id])
    assert len(ended_lines(lines, first)) == len(ended_lines(lines, second)) == 1
