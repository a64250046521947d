"""Trace contexts, and which tasks' spans are kept."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, messaging_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes

from core.failures import Failure
from core.lanes import Lane, LengthClass, Priority
from core.pricing import Tariff, Usage
from core.states import TaskState
from core.traces import TraceContext, by_one_clock, in_share, span_id_of, trace_of
from runtime.tracing import Span
from services.new_id import new_id
from storage.records import UNUSED, Claim, Ending
from workers.engine import EngineUsage
from workers.record import Record, Recorder

SAMPLED = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)
UNSAMPLED = replace(SAMPLED, sampled=False)


@pytest.mark.parametrize("context", [SAMPLED, UNSAMPLED])
def test_a_traceparent_reads_back(context: TraceContext) -> None:
    assert TraceContext.parse(str(context)) == context


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "x" * 100_000,
    ],
)
def test_what_is_no_traceparent_is_ignored(text: str | None) -> None:
    assert TraceContext.parse(text) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert TraceContext.parse("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more") == SAMPLED


def test_a_share_of_traces_is_the_same_share_everywhere() -> None:
    ids = [trace_of(f"task_{number}", "admit", sampled=True).trace_id for number in range(4000)]
    kept = [trace_id for trace_id in ids if in_share(trace_id, 0.1)]
    assert 300 < len(kept) < 500
    assert all(in_share(trace_id, 0.2) for trace_id in kept)
    assert not any(in_share(trace_id, 0) for trace_id in ids)
    assert all(in_share(trace_id, 1) for trace_id in ids)


def test_another_machines_moment_is_taken_unless_its_clock_is_clearly_not_ours() -> None:
    second = 1_000_000_000
    ours = 100 * second
    assert by_one_clock(ours - second // 2, ours) == ours - second // 2
    assert by_one_clock(ours - 3 * second, ours) == by_one_clock(ours + 3 * second, ours) == ours
    asked = ours - 5 * second  # the answer took its time
    assert by_one_clock(ours - 3 * second, ours, since_ns=asked) == ours - 3 * second
    assert by_one_clock(ours - 7 * second, ours, since_ns=asked) == ours


class Kept:
    """A tracer that keeps what it is given."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def emit(self, spans: list[Span]) -> None:
        self.spans += spans

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def recorder(kept: Kept) -> Recorder:
    return Recorder(worker="w", hash_key=b"key", slow_share=0.99, tracer=kept)  # type: ignore[arg-type]


def claimed(context: TraceContext | None, batch_id: str | None = None, **of_claim: int) -> Claim:
    return Claim(
        task_id=new_id("task"),
        tenant_id="tenant",
        attempt=of_claim.get("attempt", 1),
        url="/v1/chat/completions",
        request="{}",
        max_output_tokens=100,
        prompt_tokens=5,
        created_at=datetime.now(UTC),
        remaining_s=60.0,
        waited_s=of_claim.get("waited_s", 0.001),
        lane=Lane("m", LengthClass.SHORT, Priority.STANDARD),
        preemptions=0,
        failures=0,
        used=UNUSED,
        tariff=Tariff(0, 0, 0),
        traceparent=None if context is None else str(context),
        batch_id=batch_id,
    )


def run(
    recorder: Recorder,
    context: TraceContext | None,
    failure: Failure | None = None,
    batch_id: str | None = None,
    **of_claim: int,
) -> str:
    """One attempt from its claim to its end; return the task's id."""
    claim = claimed(context, batch_id, **of_claim)
    record = Record(recorder, claim)
    record.sent()
    for tokens in range(1, 71):
        record.output(EngineUsage(5, 0, tokens), tokens)
    record.generated()
    state = TaskState.COMPLETED if failure is None else TaskState.FAILED
    usage = Usage(5, 0, 70)
    ending = Ending(claim.task_id, claim.attempt, state, usage, finish_reason="stop", failure=failure)
    record.ended(ending, "text")
    return claim.task_id


ATTEMPT = ["attempt", "decode", "prefill", "queue_wait", "settle"]


def test_a_sampled_task_is_kept_and_its_request_is_left_to_the_api(recorder: Recorder, kept: Kept) -> None:
    run(recorder, SAMPLED)
    assert kept.names == ATTEMPT
    decode = next(span for span in kept.spans if span.name == "decode")
    assert [about["gen_ai.usage.output_tokens"] for _, _, about in decode.events] == [32, 64]


def test_an_unsampled_task_leaves_no_span_unless_it_fails(recorder: Recorder, kept: Kept) -> None:
    run(recorder, UNSAMPLED)
    assert kept.names == []
    run(recorder, UNSAMPLED, Failure.ENGINE_ERROR)
    assert kept.names == ["admit", *ATTEMPT]
    assert [span.error for span in kept.spans if span.name == "attempt"] == ["engine_error"]


def test_the_request_of_a_batchs_item_that_is_kept_after_all_links_to_the_batch(
    recorder: Recorder, kept: Kept
) -> None:
    run(recorder, UNSAMPLED, Failure.ENGINE_ERROR, batch_id="batch_1")
    admit = next(span for span in kept.spans if span.name == "admit")
    assert admit.links == [(trace_of("batch_1", "batch", sampled=True), {"headrace.link": "batch"})]
    assert admit.attributes["headrace.batch.id"] == "batch_1"


def test_of_an_attempt_that_was_taken_away_only_its_phases_are_told(recorder: Recorder, kept: Kept) -> None:
    record = Record(recorder, claimed(UNSAMPLED))
    record.sent()
    record.output(EngineUsage(5, 0, 1), 1)
    record.lost("lease")
    assert kept.names == ["decode", "prefill"], "the rescuer has reported the attempt itself"


def test_an_unsampled_task_that_was_slow_is_kept(recorder: Recorder, kept: Kept) -> None:
    for _ in range(60):
        run(recorder, UNSAMPLED)
    run(recorder, UNSAMPLED, waited_s=50)
    assert kept.names == ["admit", *ATTEMPT]
    attempt = next(span for span in kept.spans if span.name == "attempt")
    assert attempt.attributes["headrace.slow_cause"] == "wait"


def test_a_later_attempt_links_to_the_request_and_to_the_attempt_before(
    recorder: Recorder, kept: Kept
) -> None:
    task_id = run(recorder, SAMPLED, attempt=2)
    attempt = next(span for span in kept.spans if span.name == "attempt")
    linked = {about["headrace.link"]: to.span_id for to, about in attempt.links}
    assert linked == {"request": SAMPLED.span_id, "previous_attempt": span_id_of(task_id, "attempt.1")}
    assert "queue_wait" not in kept.names  # it waited before the first


def test_without_a_trace_nothing_is_told(recorder: Recorder, kept: Kept) -> None:
    run(recorder, None, Failure.ENGINE_ERROR)
    assert kept.names == []


def test_attribute_names_are_those_of_the_conventions_or_our_own(recorder: Recorder, kept: Kept) -> None:
    run(recorder, SAMPLED, Failure.ENGINE_ERROR)
    known = {
        value
        for module in (gen_ai_attributes, messaging_attributes, error_attributes, http_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    used = {name for span in kept.spans for name in span.attributes}
    used |= {name for span in kept.spans for _, _, about in span.events for name in about}
    assert {name for name in used if not name.startswith("headrace.")} <= known
