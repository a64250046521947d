"""An attempt's spans, built when it ended. Attribute names are GenAI's semantic conventions where there is one.

Source: opentelemetry.io/docs/specs/semconv/gen-ai (development status, 2026); messaging and error attributes of
semconv 1.3x. Tests hold the names against the package of the conventions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core.traces import TraceContext, by_one_clock
from runtime.task_spans import (
    admit_span,
    attempt_context,
    attempt_span,
    common,
    nanoseconds,
    queue_wait_span,
)
from runtime.tracing import DECODE, PREFILL, SETTLE, Attributes, Span
from storage.records import Claim

MARK_TOKENS = 32  # an event of the decode span each time so many more are there
_MOST_MARKS = 4096
_LONGEST_CLAIM_NS = 4_000_000_000  # from the database's answer to our hearing of it, on a busy machine


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


SpansOf = Callable[[Claim, TraceContext, Turns, Attributes, str | None], list[Span]]


def spans_of(
    claim: Claim, request: TraceContext, turns: Turns, attributes: Attributes, error: str | None
) -> list[Span]:
    """Build the spans of one attempt; `request` is the context that the task's row carries."""
    start_ns, end_ns = turns.claimed_ns, turns.ended_ns
    spans = [attempt_span(claim, request, start_ns, end_ns, attributes=attributes, error=error)]
    spans += phases_of(claim, request, turns, attributes, error)
    if claim.attempt == 1:  # the wait by the database's clock, from the row's acceptance
        ours_ns = start_ns - int(claim.waited_s * 1e9)
        accepted_ns = by_one_clock(
            nanoseconds(claim.created_at), ours_ns, since_ns=ours_ns - _LONGEST_CLAIM_NS
        )
        spans.append(queue_wait_span(claim, request, accepted_ns, start_ns))
    if not request.sampled:  # the API left it to us: what it knew is in the row
        spans.append(admit_span(claim, request))
    return spans


def phases_of(claim: Claim, request: TraceContext, turns: Turns, _: Attributes, __: str | None) -> list[Span]:
    """What is below the attempt's span: all there is to report of an attempt that was taken away."""
    attempt, about = attempt_context(claim, request), common(claim)
    return [
        Span(
            name,
            request.of_task(claim.task_id, f"{name}.{claim.attempt}"),
            start_ns,
            end_ns,
            attempt,
            attributes=about,
            events=events,
        )
        for name, start_ns, end_ns, events in _phases(turns)
    ]


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
