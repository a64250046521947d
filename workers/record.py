"""What one attempt tells of itself: metrics, spans, and the one line that a finished task is logged with.

The attempt calls it at its turns and never a token. Text stays out of it: a prompt and an answer are told by
their length and a keyed hash, so that equal ones can be recognised by who has the key.

Units: `*_s` seconds, `*_ms` milliseconds.
"""

import hashlib
import hmac
import sys
import time
from datetime import UTC, datetime

import structlog

from core.failures import RULES, Failure
from core.slow import LaneHistory, Times
from core.states import TaskState
from core.traces import TraceContext
from runtime import metrics
from runtime.ended import Ran, tell_ended
from runtime.tracing import Attributes, Tracer
from storage.ended import Ended
from storage.records import Claim, Ending
from workers.engine import EngineUsage
from workers.spans import SpansOf, Turns, phases_of, spans_of

log = structlog.get_logger()


class Recorder:
    """What the records of one worker share. `tracer` None: nothing is traced."""

    def __init__(self, *, worker: str, hash_key: bytes, slow_share: float, tracer: Tracer | None) -> None:
        self.worker, self._slow_share, self.tracer = worker, slow_share, tracer
        self._hash_key = hash_key
        self._lanes: dict[str, LaneHistory] = {}

    def hash(self, text: str) -> str:
        """Name a text without telling it."""
        return hmac.new(self._hash_key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:16]

    def lane(self, queue: str) -> LaneHistory:
        """The lane's history in this worker."""
        history = self._lanes.get(queue)
        if history is None:
            history = self._lanes[queue] = LaneHistory(self._slow_share)
        return history


class Record:
    """One attempt's."""

    def __init__(self, recorder: Recorder, claim: Claim) -> None:
        self._recorder, self._claim = recorder, claim
        lane = claim.lane
        self._lane = (lane.model, str(lane.length_class), str(lane.priority))
        self._labels = (*self._lane, metrics.bounded("tenant_class", claim.tenant_class))
        self._began = time.monotonic()
        self._trace = TraceContext.parse(claim.traceparent)
        self._turns = None
        if recorder.tracer is not None and self._trace is not None:
            self._turns = Turns(time.time_ns())
        self._mark_at = 1 if self._turns else sys.maxsize  # output tokens
        self.usage: EngineUsage | None = None  # the engine's newest counts of this attempt
        metrics.CLAIMS.labels(lane.model, "claimed").inc()
        if claim.attempt == 1:
            metrics.QUEUE_WAIT.labels(*self._labels).observe(claim.waited_s)

    def sent(self) -> None:
        """The engine has it."""
        if self._turns is not None:
            self._turns.sent_ns = time.time_ns()

    def output(self, usage: EngineUsage, output_tokens: int) -> None:
        """The engine's newest counts, and the whole task's; called at each step, so it does next to nothing."""
        self.usage = usage
        if self._turns is not None and output_tokens >= self._mark_at:
            self._mark_at = self._turns.mark(time.time_ns(), output_tokens)

    def generated(self) -> None:
        """The engine is done with it."""
        if self._turns is not None:
            self._turns.generated_ns = time.time_ns()

    def first_token(self, ttft_ms: int) -> None:
        """The task's first token was sent."""
        metrics.TTFT.labels(*self._labels).observe(ttft_ms / 1000)

    def handed_back(self, failure: Failure) -> None:
        """The next attempt goes on."""
        metrics.ATTEMPTS_ENDED.labels(self._claim.lane.model, "handed_back", failure).inc()
        log.info("handed_back", task_id=self._claim.task_id, attempt=self._claim.attempt, failure=failure)
        self._emit(failure, keep=RULES[failure].counts)

    def lost(self, why: str) -> None:
        """The task is another attempt's."""
        # whoever took it away has counted it, and reported its span; what the engine did for it only we know
        log.warning("attempt_lost", task_id=self._claim.task_id, attempt=self._claim.attempt, why=why)
        self._emit(None, keep=True, of=phases_of)

    def ended(self, ending: Ending, output_text: str) -> None:
        """The task is final: `ending` is what was committed."""
        run_s = time.monotonic() - self._began
        claim, usage = self._claim, ending.usage
        engine = self.usage or EngineUsage(0, 0, 0)
        prefill_s = (engine.queued_s or 0.0) + (engine.prefill_s or 0.0)
        metrics.ATTEMPTS_ENDED.labels(claim.lane.model, "settled", ending.failure or "none").inc()
        if engine.prefill_s is not None:
            metrics.PREFILL.labels(*self._labels).observe(prefill_s)
        if engine.decode_s is not None and engine.output_tokens > 1:
            metrics.TPOT.labels(*self._labels).observe(engine.decode_s / (engine.output_tokens - 1))
        times = Times(
            total_s=claim.waited_s + run_s,
            wait_s=claim.waited_s,
            prefill_s=prefill_s,
            decode_s=engine.decode_s or 0.0,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            attempts=claim.attempt,
            preemptions=engine.preemptions + ending.preemptions,
        )
        ran = Ran(
            prefill_s=prefill_s,
            decode_s=times.decode_s,
            engine_preemptions=engine.preemptions,
            output_characters=len(output_text),
            output_hash=self._recorder.hash(output_text),
        )
        line = tell_ended(self._as_ended(ending), waited_s=claim.waited_s, run_s=run_s, ran=ran)
        slow = None
        if ending.state is TaskState.COMPLETED:
            slow = self._recorder.lane(claim.lane.queue).add(times)
        if slow is not None:
            metrics.SLOW_TASKS.labels(*self._lane, slow.cause).inc()
            log.warning(
                "slow_task",
                cause=slow.cause,
                limit_ms=_ms(slow.limit_s),
                median_ms=_ms(slow.median_s),
                **line,
            )
        attributes: Attributes = {
            "gen_ai.response.id": claim.task_id,
            "gen_ai.response.model": claim.lane.model,
            "gen_ai.request.max_tokens": claim.max_output_tokens,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.response.finish_reasons": [ending.finish_reason] if ending.finish_reason else None,
            "headrace.state": ending.state,
            "headrace.cost_usd_micros": ending.cost_usd_micros,
            "headrace.ttft_ms": ending.ttft_ms,
            "headrace.engine_queued_ms": _ms(engine.queued_s or 0.0),
            "headrace.preemptions": engine.preemptions,
            "headrace.slow_cause": slow.cause if slow else None,
        }
        self._emit(ending.failure, attributes, keep=slow is not None or ending.failure is not None)

    def _emit(
        self,
        error: str | None,
        attributes: Attributes | None = None,
        *,
        keep: bool,
        of: SpansOf = spans_of,
    ) -> None:
        """Report the attempt's spans, if its trace is sampled or it is worth keeping anyway."""
        tracer, turns, trace = self._recorder.tracer, self._turns, self._trace
        if tracer is None or turns is None or trace is None or not (trace.sampled or keep):
            return
        self._turns = None  # however it ends, it is told once
        turns.ended_ns = time.time_ns()
        tracer.emit(of(self._claim, trace, turns, attributes or {}, error))

    def _as_ended(self, ending: Ending) -> Ended:
        """The row as it was committed, without reading it back."""
        claim = self._claim
        return Ended(
            task_id=claim.task_id,
            tenant_id=claim.tenant_id,
            tenant_class=claim.tenant_class,
            lane=claim.lane,
            state=ending.state,
            attempt=claim.attempt,
            worker=self._recorder.worker,
            finish_reason=ending.finish_reason,
            failure=ending.failure,
            prompt_tokens=claim.prompt_tokens,
            usage=ending.usage,
            cost_usd_micros=ending.cost_usd_micros,
            ttft_ms=ending.ttft_ms,
            preemptions=ending.preemptions,
            created_at=claim.created_at,
            finished_at=datetime.now(UTC),
            traceparent=claim.traceparent,
            batch_id=claim.batch_id,
            request_bytes=len(claim.request.encode()),
            request_hash=self._recorder.hash(claim.request),
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
