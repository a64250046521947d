"""What is told of a task's end, the same wherever it happens: counted once, logged once, its spans reported.

Exactly one statement makes a task final; whoever's that was calls this after its commit. A process that dies
between the two tells nothing of that task, as it loses all that it counted.

Units: `*_s` seconds, `*_ms` milliseconds, `*_ns` nanoseconds since the epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import RULES
from core.traces import TraceContext
from runtime import metrics
from runtime.task_spans import (
    LEASE_LOST,
    admit_span,
    attempt_context,
    attempt_span,
    nanoseconds,
    queue_wait_span,
    settle_span,
)
from runtime.tracing import Attributes, Span, Tracer
from services.read_ended import read_ended
from storage.ended import Ended
from storage.errors import STORE_ERRORS
from storage.records import LostAttempt

log = structlog.get_logger()
_MOST_UNTOLD = 10_000


@dataclass(frozen=True, slots=True)
class Ran:
    """What only the worker that ran a task knows of it."""

    prefill_s: float | None
    decode_s: float | None
    engine_preemptions: int
    output_characters: int
    output_hash: str


def labels_of(ended: Ended) -> tuple[str, str, str, str]:
    """The labels that metrics of a task have."""
    lane = ended.lane
    tenant_class = metrics.bounded("tenant_class", ended.tenant_class)
    return lane.model, str(lane.length_class), str(lane.priority), tenant_class


def tell_ended(ended: Ended, *, waited_s: float, run_s: float, ran: Ran | None = None) -> dict[str, Any]:
    """Count and log an end; return the line's fields. `run_s`: of the last attempt, 0 if it ended in the queue."""
    labels, total_s = labels_of(ended), waited_s + run_s
    reason = ended.failure or ended.finish_reason or "none"
    metrics.TASKS_ENDED.labels(*labels, ended.state, reason).inc()
    metrics.END_TO_END.labels(*labels).observe(total_s)
    billed = ended.failure is None or RULES[ended.failure].billed
    usage = ended.usage
    kinds = {"prompt": usage.prompt_tokens, "cached": usage.cached_tokens, "output": usage.output_tokens}
    for kind, tokens in kinds.items():
        if tokens:
            metrics.TASK_TOKENS.labels(*labels, kind).inc(tokens)
            if billed:
                metrics.LEDGER_TOKENS.labels(*labels, kind).inc(tokens)
    if billed:
        metrics.LEDGER_COST.labels(*labels).inc(ended.cost_usd_micros)
    trace = TraceContext.parse(ended.traceparent)
    line = {
        "task_id": ended.task_id,
        "tenant_id": ended.tenant_id,
        "model": ended.lane.model,
        "lane": ended.lane.queue,
        "worker": ended.worker,
        "attempt": ended.attempt,
        "state": ended.state,
        "finish_reason": ended.finish_reason,
        "failure": ended.failure,
        "prompt_tokens": usage.prompt_tokens or ended.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "preemptions": ran.engine_preemptions if ran else None,
        "slots_lent": ended.preemptions,
        "queued_ms": _ms(waited_s),
        "ttft_ms": ended.ttft_ms,
        "prefill_ms": _ms(ran.prefill_s if ran else None),
        "decode_ms": _ms(ran.decode_s if ran else None),
        "run_ms": _ms(run_s),
        "total_ms": _ms(total_s),
        "cost_usd_micros": ended.cost_usd_micros if billed else 0,
        "request_bytes": ended.request_bytes,
        "request_hash": ended.request_hash and ended.request_hash[:16],
        "output_characters": ran.output_characters if ran else None,
        "output_hash": ran.output_hash if ran else None,
        "trace_id": trace.trace_id_hex if trace else None,
    }
    log.info("task_ended", **line)
    return line


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


class Endings:
    """Tells of tasks and attempts that ended without the worker that ran them. `tracer` None: nothing is traced."""

    def __init__(self, database: AsyncEngine, hash_key: bytes, tracer: Tracer | None) -> None:
        self._database, self._hash_key, self._tracer = database, hash_key, tracer
        self._untold: dict[str, LostAttempt | None] = {}  # whose rows could not be read yet

    async def tell(self, ended: Sequence[str], lost: Mapping[str, LostAttempt] | None = None) -> None:
        """Tell of tasks that this process has ended just now, once each.

        `lost`: of those that ran, the attempts that were given up; the others waited.
        """
        self._untold.update({task_id: (lost or {}).get(task_id) for task_id in ended})
        if not self._untold:
            return
        told, self._untold = self._untold, {}
        try:
            rows = await read_ended(self._database, list(told), hash_key=self._hash_key)
        except STORE_ERRORS as error:  # with the next ones
            log.warning("ends_not_told", tasks=len(told), error=f"{type(error).__name__}: {error}")
            self._untold = dict([*told.items(), *self._untold.items()][:_MOST_UNTOLD])
            return
        for row in rows:
            self._tell_one(row, told[row.task_id])

    def tell_lost(self, lost: Sequence[LostAttempt]) -> None:
        """Tell of attempts whose tasks are queued again."""
        for attempt in lost:
            self._count_lost(attempt)
            self._emit(attempt.traceparent, lambda request, of=attempt: _lost_spans(of, request), keep=True)

    def _tell_one(self, ended: Ended, lost: LostAttempt | None) -> None:
        run_s = 0.0
        if lost is not None:
            self._count_lost(lost)
            run_s = (ended.finished_at - lost.claimed_at).total_seconds()
        total_s = (ended.finished_at - ended.created_at).total_seconds()
        tell_ended(ended, waited_s=total_s - run_s, run_s=run_s)
        keep = lost is not None or ended.failure is not None
        self._emit(ended.traceparent, lambda request: _end_spans(ended, lost, request), keep=keep)

    def _count_lost(self, lost: LostAttempt) -> None:
        metrics.ATTEMPTS_ENDED.labels(lost.lane.model, "lost", LEASE_LOST).inc()
        log.warning("lease_lost", task_id=lost.task_id, attempt=lost.attempt, worker=lost.worker)

    def _emit(self, traceparent: str | None, build: Any, *, keep: bool) -> None:
        request = TraceContext.parse(traceparent)
        if self._tracer is not None and request is not None and (request.sampled or keep):
            self._tracer.emit(build(request))


def _lost_spans(lost: LostAttempt, request: TraceContext, until: datetime | None = None) -> list[Span]:
    """What an attempt's worker could not report, as far as the row knows it."""
    claimed_ns = nanoseconds(lost.claimed_at)
    spans = [
        attempt_span(
            lost,
            request,
            claimed_ns,
            nanoseconds(until or lost.found_at),
            attributes={"headrace.worker": lost.worker},
            error=LEASE_LOST,
            events=[("lease_expired", nanoseconds(lost.lease_expired_at), {})],
        )
    ]
    if lost.attempt == 1:
        spans.append(queue_wait_span(lost, request, nanoseconds(lost.created_at), claimed_ns))
    return spans if request.sampled else [*spans, admit_span(lost, request)]


def _end_spans(ended: Ended, lost: LostAttempt | None, request: TraceContext) -> list[Span]:
    """The end itself, below the attempt that was given up or else below the request."""
    spans, parent = list[Span](), request
    end_ns = nanoseconds(ended.finished_at)
    if lost is not None:
        spans, parent = _lost_spans(lost, request, ended.finished_at), attempt_context(lost, request)
    else:
        if ended.attempt == 0:
            began_ns = nanoseconds(ended.created_at)
            spans.append(queue_wait_span(ended, request, began_ns, end_ns, ended.failure))
        if not request.sampled:
            spans.append(admit_span(ended, request))
    attributes: Attributes = {
        "headrace.state": ended.state,
        "headrace.cost_usd_micros": ended.cost_usd_micros,
        "gen_ai.usage.output_tokens": ended.usage.output_tokens,
    }
    found_ns = end_ns if lost is None else nanoseconds(lost.found_at)
    return [*spans, settle_span(ended, parent, found_ns, end_ns, attributes=attributes, error=ended.failure)]
