"""Trace contexts: W3C's traceparent, which span is which, and who is sampled.

Span ids are derived from the task's id and the span's name, so that every process knows the id of every span of
a task without being told: a worker names the request's span as its parent, an attempt links to the one before
it, and a span that two processes report is one span.

Source: www.w3.org/TR/trace-context-1 (version 00); consistent sampling by trace id as OpenTelemetry's
TraceIdRatioBased, so that all services that sample the same share keep the same traces.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LOW = (1 << 64) - 1
_SAME_CLOCK_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace, and whether the trace is sampled."""

    trace_id: int  # 128 bits, not 0
    span_id: int  # 64 bits, not 0
    sampled: bool

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Read a traceparent; None for what is none, which a receiver must ignore."""
        found = _FORM.fullmatch(text.strip()) if text and len(text) < 512 else None
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))

    def __str__(self) -> str:
        """The traceparent."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    @property
    def trace_id_hex(self) -> str:
        """As callers, logs and backends write it."""
        return f"{self.trace_id:032x}"

    def of_task(self, task_id: str, name: str) -> "TraceContext":
        """The context of another span of a task in this trace."""
        return TraceContext(self.trace_id, span_id_of(task_id, name), self.sampled)


def span_id_of(owner_id: str, name: str) -> int:
    """The id of the span of that name of a task or batch."""
    return int.from_bytes(sha256(f"{owner_id}:{name}".encode()).digest()[:8]) or 1


def trace_of(owner_id: str, name: str, *, sampled: bool) -> TraceContext:
    """The context of what begins a trace of its own and must be named before it is made: a batch."""
    trace_id = int.from_bytes(sha256(f"trace:{owner_id}".encode()).digest()[:16]) or 1
    return TraceContext(trace_id, span_id_of(owner_id, name), sampled)


def by_one_clock(theirs_ns: int, ours_ns: int, *, since_ns: int | None = None) -> int:
    """Return a moment that another machine noted, or our own where the two clocks are clearly not one.

    Spans that meet at a moment that both sides have noted leave no gap between them. `since_ns`: we asked then, and
    heard at `ours_ns`; what lies between on a busy machine is no difference of clocks.
    """
    earliest_ns = (ours_ns if since_ns is None else since_ns) - _SAME_CLOCK_NS
    return theirs_ns if earliest_ns < theirs_ns < ours_ns + _SAME_CLOCK_NS else ours_ns


def in_share(trace_id: int, share: float) -> bool:
    """Say whether a trace belongs to the sampled share (0 to 1)."""
    return (trace_id & _LOW) < round(share * (_LOW + 1))
