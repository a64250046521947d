"""An attempt's spans, built when it ended. Attribute names are GenAI's semantic conventions where there is one.

Source: opentelemetry.io/docs/specs/semconv/gen-ai (development status, 2026); messaging and error attributes of
semconv 1.3x. Tests hold the names against the package of the conventions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from opentelemetry.trace import SpanKind

from core.ids import created_ms
from core.traces import TraceContext, by_one_clock
from runtime.tracing import (
    ADMIT,
    ATTEMPT,
    DECODE,
    PREFILL,
    QUEUE_WAIT,
    SETTLE,
    Attributes,
    Span,
    about_task,
)
from storage.records import Claim

MARK_TOKENS = 32  # an event of the decode span each time so many more are there
_MOST_MARKS = 4096


@dataclass(slots=True)
class Turns:
    """When an attempt came to each of its turns; 0: it did not."""

    claimed_ns: int
    sent_ns: int = 0  # to the engine
    first_ns: int = 0  # the engine's first token
    generated_ns: int = 0  # the engine's last
    ended_ns: int = 0
    marks: list[tuple[int, int]] = field(default_factory=list)  # when, output tokens

    def mark(self, at_ns: int, tokens: int) -> int:
        """Note so many output tokens; return at how many to note again."""
        if not self.first_ns:
            self.first_ns = at_ns
        elif len(self.marks) < _MOST_MARKS:
            self.marks.append((at_ns, tokens))
        return tokens - tokens % MARK_TOKENS + MARK_TOKENS


def spans_of(
    claim: Claim, request: TraceContext, turns: Turns, attributes: Attributes, error: str | None
) -> list[Span]:
    """Build the spans of one attempt; `request` is the context that the task's row carries."""
    task_id = claim.task_id
    common = about_task(task_id, claim.lane.queue, claim.lane.model, claim.tenant_id)
    attempt = request.of_task(task_id, f"{ATTEMPT}.{claim.attempt}")
    links: list[tuple[TraceContext, Attributes]] = [(request, {"headrace.link": "request"})]
    if claim.attempt > 1:
        before = request.of_task(task_id, f"{ATTEMPT}.{claim.attempt - 1}")
        links.append((before, {"headrace.link": "previous_attempt"}))
    spans = [
        Span(
            ATTEMPT,
            attempt,
            turns.claimed_ns,
            turns.ended_ns,
            request,
            SpanKind.CONSUMER,
            {**common, **attributes, "headrace.attempt": claim.attempt, "error.type": error},
            links=links,
            error=error,
        )
    ]
    for name, start_ns, end_ns, events in _phases(turns):
        context = request.of_task(task_id, f"{name}.{claim.attempt}")
        spans.append(Span(name, context, start_ns, end_ns, attempt, attributes=common, events=events))
    if claim.attempt == 1:
        spans.append(_queue_wait(claim, request, turns.claimed_ns, common))
    if not request.sampled:  # the API left it to us: what it knew is in the row
        began_ns = created_ms(task_id) * 1_000_000
        accepted_ns = int(claim.created_at.timestamp() * 1e9)
        spans.append(Span(ADMIT, request, began_ns, accepted_ns, None, SpanKind.SERVER, common))
    return spans


Phase = tuple[str, int, int, Sequence[tuple[str, int, Attributes]]]


def _phases(turns: Turns) -> list[Phase]:
    """Prefill, decode and settle, each as far as the attempt came: together they are the attempt."""
    end_ns = turns.ended_ns
    generated_ns = turns.generated_ns or end_ns
    sent: list[tuple[str, int, Attributes]] = [("sent_to_engine", turns.sent_ns, {})] if turns.sent_ns else []
    phases: list[Phase] = [(PREFILL, turns.claimed_ns, turns.first_ns or generated_ns, sent)]
    if turns.first_ns:
        marks: list[tuple[str, int, Attributes]] = [
            (
                "tokens",
                at_ns,
                {
                    "gen_ai.usage.output_tokens": tokens,
                    "headrace.elapsed_ms": (at_ns - turns.first_ns) // 1_000_000,
                },
            )
            for at_ns, tokens in turns.marks
        ]
        phases.append((DECODE, turns.first_ns, generated_ns, marks))
    if turns.generated_ns:
        phases.append((SETTLE, generated_ns, end_ns, ()))
    return phases


def _queue_wait(claim: Claim, request: TraceContext, claimed_ns: int, common: Attributes) -> Span:
    """From the row's acceptance, by the database's clock."""
    accepted_ns = by_one_clock(
        int(claim.created_at.timestamp() * 1e9), claimed_ns - int(claim.waited_s * 1e9)
    )
    return Span(
        QUEUE_WAIT,
        request.of_task(claim.task_id, QUEUE_WAIT),
        accepted_ns,
        claimed_ns,
        request,
        SpanKind.INTERNAL,
        {
            **common,
            "messaging.system": "celery",
            "messaging.destination.name": claim.lane.queue,
            "messaging.message.id": claim.task_id,
        },
    )
