"""Spans of a task that more than one process may report, built from what its row says."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from core.ids import created_ms
from core.lanes import Lane
from core.traces import TraceContext, trace_of
from runtime.tracing import ADMIT, ATTEMPT, BATCH, QUEUE_WAIT, SETTLE, Attributes, Span, about_task

LEASE_LOST = "lease_lost"  # the error of an attempt whose worker was not heard of again


class OfTask(Protocol):
    """What is known of a task, or of an attempt of it."""

    @property
    def task_id(self) -> str: ...
    @property
    def tenant_id(self) -> str: ...
    @property
    def lane(self) -> Lane: ...
    @property
    def attempt(self) -> int: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def batch_id(self) -> str | None: ...


def nanoseconds(moment: datetime) -> int:
    """Since the epoch."""
    return int(moment.timestamp() * 1e9)


def common(of: OfTask) -> dict[str, AttributeValue | None]:
    """Attributes that every span of the task has."""
    return about_task(of.task_id, of.lane.queue, of.lane.model, of.tenant_id)


def attempt_context(of: OfTask, request: TraceContext) -> TraceContext:
    """The context of the attempt's span."""
    return request.of_task(of.task_id, f"{ATTEMPT}.{of.attempt}")


def attempt_span(
    of: OfTask,
    request: TraceContext,
    start_ns: int,
    end_ns: int,
    *,
    attributes: Attributes,
    error: str | None,
    events: Sequence[tuple[str, int, Attributes]] = (),
) -> Span:
    """One attempt, linked to the request and to the attempt before; `request` is what the task's row carries."""
    links: list[tuple[TraceContext, Attributes]] = [(request, {"headrace.link": "request"})]
    if of.attempt > 1:
        before = request.of_task(of.task_id, f"{ATTEMPT}.{of.attempt - 1}")
        links.append((before, {"headrace.link": "previous_attempt"}))
    about = {**common(of), **attributes, "headrace.attempt": of.attempt, "error.type": error}
    context = attempt_context(of, request)
    return Span(
        ATTEMPT, context, start_ns, end_ns, request, SpanKind.CONSUMER, about, events, links, error=error
    )


def queue_wait_span(
    of: OfTask, request: TraceContext, start_ns: int, end_ns: int, error: str | None = None
) -> Span:
    """Acceptance to the first claim, or to an end that came before it."""
    about: Mapping[str, AttributeValue | None] = {
        **common(of),
        "messaging.system": "celery",
        "messaging.destination.name": of.lane.queue,
        "messaging.message.id": of.task_id,
        "error.type": error,
    }
    context = request.of_task(of.task_id, QUEUE_WAIT)
    return Span(QUEUE_WAIT, context, start_ns, end_ns, request, attributes=about, error=error)


def settle_span(
    of: OfTask, parent: TraceContext, start_ns: int, end_ns: int, *, attributes: Attributes, error: str | None
) -> Span:
    """The end of a task whose worker did not end it."""
    about = {**common(of), **attributes, "error.type": error}
    context = parent.of_task(of.task_id, f"{SETTLE}.{of.attempt}")
    return Span(SETTLE, context, start_ns, end_ns, parent, attributes=about, error=error)


def admit_span(of: OfTask, request: TraceContext) -> Span:
    """The request's span where its process left it out, as wide as the row tells; a batch's item links to it."""
    about, links = common(of), list[tuple[TraceContext, Attributes]]()
    kind = SpanKind.SERVER
    if of.batch_id is not None:
        about["headrace.batch.id"] = of.batch_id
        links.append((trace_of(of.batch_id, BATCH, sampled=True), {"headrace.link": "batch"}))
        kind = SpanKind.INTERNAL
    began_ns = created_ms(of.task_id) * 1_000_000
    accepted_ns = nanoseconds(of.created_at)
    return Span(ADMIT, request, began_ns, accepted_ns, None, kind, about, links=links)
