"""The loops that batches go through."""

from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncEngine

from control.batch_expansion import BatchExpansion, Limits
from control.batch_results import BatchResults
from control.batch_validation import BatchValidation
from control.loops import Loop
from control.rounds import Rounds
from runtime.ended import Endings
from runtime.settings import Settings
from runtime.tracing import Tracer
from storage.blobs import Blobs
from storage.streams import EventStreams

_ENVELOPE_BYTES = 64 * 1024  # of a line, around the request
_OFTEN = 4  # looks a tick at open batches: a small one should not wait for the clock three times


def batch_loops(
    settings: Settings,
    database: AsyncEngine,
    blobs: Blobs,
    streams: EventStreams,
    endings: Endings,
    wake: Callable[[], None],
    tracer: Tracer | None,
    rounds: Rounds,
) -> list[Loop]:
    """Validation, expansion, results. `wake` tells the dispatcher that something waits."""
    line_bytes = settings.max_body_bytes + _ENVELOPE_BYTES
    limits = Limits(settings.batch_live_tasks, line_bytes, settings.max_attempts)
    often_s = settings.tick_s / _OFTEN
    validation = BatchValidation(database, blobs, max_line_bytes=line_bytes)
    expansion = BatchExpansion(database, blobs, limits, wake, tracer)
    results = BatchResults(database, blobs, streams, endings, max_line_bytes=line_bytes, tracer=tracer)
    return [
        rounds.loop("batch_validation", often_s, validation),
        rounds.loop("batch_expansion", often_s, expansion, busy=lambda: expansion.begun),
        rounds.loop("batch_results", settings.tick_s, results, busy=lambda: results.open, counted=False),
    ]
