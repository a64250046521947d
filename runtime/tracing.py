"""Traces of tasks, to an OpenTelemetry collector or the console; off unless HEADRACE_TRACE_TO says where.

A task's spans are built when each ends, from times taken before, and not kept open: so whether they are worth
keeping is decided at their end. What the head's sampling chose goes out, and so does what failed or was slow.

Spans: admit (the request), below it queue_wait, one attempt for each try (prefill, decode, settle in it) and
deliver (webhook). `core.traces` says how each knows the others' ids.

Units: `*_ns` nanoseconds since the epoch.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.metadata import version

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from core.traces import TraceContext, by_one_clock, in_share, trace_of
from runtime.settings import Settings
from storage.records import NewTask

ADMIT, QUEUE_WAIT, ATTEMPT = "admit", "queue_wait", "attempt"
BATCH = "batch"  # a trace of its own, which its items' traces link to
PREFILL, DECODE, SETTLE, DELIVER = "prefill", "decode", "settle", "deliver"
_QUEUE_SPANS = 16_384  # waiting to be exported; more are dropped rather than kept
_FLUSH_MS = 3000  # at the end of the process
_VERSION = version("headrace")
Attributes = Mapping[str, AttributeValue | None]


@dataclass(slots=True)
class Span:
    """One span that ended."""

    name: str
    context: TraceContext
    start_ns: int
    end_ns: int
    parent: TraceContext | None = None
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Attributes = field(default_factory=dict)  # those that are None are left out
    events: Sequence[tuple[str, int, Attributes]] = ()  # name, when, attributes
    links: Sequence[tuple[TraceContext, Attributes]] = ()
    error: str | None = None  # a failure's reason, never its text


class Tracer:
    """Hands spans to an exporter, from a thread of its own."""

    def __init__(self, exporter: SpanExporter, process: str, share: float) -> None:
        """`share` of the traces that begin here are kept whatever becomes of them."""
        self.share = share
        self._processor = BatchSpanProcessor(exporter, max_queue_size=_QUEUE_SPANS)
        self._resource = Resource.create(
            {
                "service.name": f"headrace-{process}",
                "service.namespace": "headrace",
                "service.version": _VERSION,
            }
        )
        self._scope = InstrumentationScope("headrace", _VERSION)

    def emit(self, spans: Sequence[Span]) -> None:
        """Export spans, whatever the head's sampling said of them."""
        for span in spans:
            self._processor.on_end(
                ReadableSpan(
                    span.name,
                    context=_context(span.context, remote=False),
                    parent=None if span.parent is None else _context(span.parent, remote=True),
                    resource=self._resource,
                    attributes=_given(span.attributes),
                    events=[Event(name, _given(about), at_ns) for name, at_ns, about in span.events],
                    links=[Link(_context(to, remote=True), _given(about)) for to, about in span.links],
                    kind=span.kind,
                    status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
                    start_time=span.start_ns,
                    end_time=max(span.start_ns, span.end_ns),
                    instrumentation_scope=self._scope,
                )
            )

    def close(self) -> None:
        """Export what waits and end."""
        self._processor.force_flush(_FLUSH_MS)
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def open_tracer(settings: Settings, process: str) -> Tracer | None:
    """A tracer to where the settings say; None when they say nowhere."""
    if not settings.trace_to:
        return None
    return Tracer(_exporter(settings.trace_to), process, settings.trace_share)


def _exporter(to: str) -> SpanExporter:
    """Headers, certificates and timeouts are OpenTelemetry's own OTEL_EXPORTER_OTLP_* variables."""
    scheme, _, rest = to.partition("://")
    if to == "console":
        return ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\n")
    if scheme in ("grpc", "grpcs"):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc(endpoint=rest, insecure=scheme == "grpc")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http(endpoint=to)


def _context(of: TraceContext, *, remote: bool) -> SpanContext:
    # the processor drops what isn't flagged as sampled; who calls it has decided
    return SpanContext(of.trace_id, of.span_id, is_remote=remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _given(attributes: Attributes) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if value is not None}


class RequestTrace:
    """One HTTP request: the trace that its caller is in, and the one that its task gets."""

    def __init__(
        self, tracer: Tracer | None, traceparent: str | None, about: Callable[[], Attributes]
    ) -> None:
        """`about`: the request's attributes, asked for when they are needed."""
        self._tracer, self._about = tracer, about
        self._parent = TraceContext.parse(traceparent)
        self._began_ns = time.time_ns()
        self.task: TraceContext | None = None  # once one was accepted

    def begin(self, task_id: str) -> TraceContext | None:
        """The context that a task of this request is to carry; None without tracing and without a caller's."""
        if self._tracer is None and self._parent is None:
            return None
        if self._parent is not None:
            return self._parent.of_task(task_id, ADMIT)
        trace_id = int.from_bytes(secrets.token_bytes(16)) or 1
        sampled = self._tracer is not None and in_share(trace_id, self._tracer.share)
        return TraceContext(trace_id, 1, sampled).of_task(task_id, ADMIT)

    def admitted(self, new: NewTask, created_at: datetime) -> None:
        """The task is stored: the request's span ends when its row says that it was, where its wait begins."""
        self.task = TraceContext.parse(new.traceparent)
        if self.task is None or self._tracer is None or not self.task.sampled:
            return
        about = about_task(new.id, new.lane.queue, new.lane.model, new.caller.tenant_id)
        self._tracer.emit(
            [
                Span(
                    ADMIT,
                    self.task,
                    self._began_ns,
                    by_one_clock(int(created_at.timestamp() * 1e9), time.time_ns(), since_ns=self._began_ns),
                    self._parent,
                    SpanKind.SERVER,
                    {**about, **self._about()},
                )
            ]
        )


class ItemTrace:
    """One item of a batch: its task begins a trace of its own, linked to the batch's."""

    def __init__(self, tracer: Tracer | None, batch_id: str) -> None:
        self._tracer, self._batch_id = tracer, batch_id
        self._began_ns = time.time_ns()
        self._new: NewTask | None = None

    def carried_by(self, new: NewTask) -> NewTask:
        """Give the task its trace; without tracing it stays as it is."""
        if self._tracer is None:
            return new
        trace_id = int.from_bytes(secrets.token_bytes(16)) or 1
        context = TraceContext(trace_id, 1, in_share(trace_id, self._tracer.share)).of_task(new.id, ADMIT)
        self._new = replace(new, traceparent=str(context))
        return self._new

    def admitted(self) -> None:
        """The task is stored: end the span that made it."""
        new = self._new
        context = TraceContext.parse(new.traceparent) if new is not None else None
        if self._tracer is None or new is None or context is None or not context.sampled:
            return
        about = about_task(new.id, new.lane.queue, new.lane.model, new.caller.tenant_id)
        batch = trace_of(self._batch_id, BATCH, sampled=True)
        self._tracer.emit(
            [
                Span(
                    ADMIT,
                    context,
                    self._began_ns,
                    time.time_ns(),
                    attributes={**about, "headrace.batch.id": self._batch_id},
                    links=[(batch, {"headrace.link": "batch"})],
                )
            ]
        )


def about_task(task_id: str, queue: str, model: str, tenant_id: str) -> dict[str, AttributeValue | None]:
    """Attributes that every span of a task has."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": model,
        "headrace.task.id": task_id,
        "headrace.lane": queue,
        "headrace.tenant.id": tenant_id,
    }


_request: ContextVar[RequestTrace | None] = ContextVar("request_trace", default=None)


def current_request() -> RequestTrace | None:
    """The trace of the HTTP request that is being answered."""
    return _request.get()


def enter_request(trace: RequestTrace) -> None:
    """Make it the current one of this context."""
    _request.set(trace)
