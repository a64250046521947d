"""What one attempt tells of itself: metrics, and the one line that a finished task is logged with.

The attempt calls it at its turns and never a token. Text stays out of it: a prompt and an answer are told by
their length and a keyed hash, so that equal ones can be recognised by who has the key.

Units: `*_s` seconds, `*_ms` milliseconds.
"""

import hashlib
import hmac
import time

import structlog

from core.failures import RULES, Failure
from core.slow import LaneHistory, Times
from core.states import TaskState
from runtime import metrics
from storage.records import Claim, Ending
from workers.engine import EngineUsage

log = structlog.get_logger()


class Recorder:
    """What the records of one worker share."""

    def __init__(self, *, worker: str, hash_key: bytes, slow_share: float) -> None:
        self.worker, self._slow_share = worker, slow_share
        self._hash_key = hmac.new(hash_key, b"headrace log", hashlib.sha256).digest()
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
        self.usage: EngineUsage | None = None  # the engine's newest counts of this attempt
        metrics.CLAIMS.labels(lane.model, "claimed").inc()
        if claim.attempt == 1:
            metrics.QUEUE_WAIT.labels(*self._labels).observe(claim.waited_s)

    def first_token(self, ttft_ms: int) -> None:
        """The task's first token was sent."""
        metrics.TTFT.labels(*self._labels).observe(ttft_ms / 1000)

    def handed_back(self, failure: Failure) -> None:
        """The next attempt goes on."""
        metrics.ATTEMPTS_ENDED.labels(self._claim.lane.model, "handed_back", failure).inc()
        log.info("handed_back", task_id=self._claim.task_id, attempt=self._claim.attempt, failure=failure)

    def lost(self, why: str) -> None:
        """The task is another attempt's."""
        metrics.ATTEMPTS_ENDED.labels(self._claim.lane.model, "lost", metrics.bounded("lost", why)).inc()
        log.warning("attempt_lost", task_id=self._claim.task_id, attempt=self._claim.attempt, why=why)

    def ended(self, ending: Ending, output_text: str) -> None:
        """The task is final: `ending` is what was committed."""
        run_s = time.monotonic() - self._began
        claim, usage = self._claim, ending.usage
        engine = self.usage or EngineUsage(0, 0, 0)
        total_s = claim.waited_s + run_s
        reason = ending.failure or ending.finish_reason or "none"
        metrics.TASKS_ENDED.labels(*self._labels, ending.state, reason).inc()
        metrics.ATTEMPTS_ENDED.labels(claim.lane.model, "settled", ending.failure or "none").inc()
        metrics.END_TO_END.labels(*self._labels).observe(total_s)
        if engine.prefill_s is not None:
            metrics.PREFILL.labels(*self._labels).observe((engine.queued_s or 0.0) + engine.prefill_s)
        if engine.decode_s is not None and engine.output_tokens > 1:
            metrics.TPOT.labels(*self._labels).observe(engine.decode_s / (engine.output_tokens - 1))
        self._count_tokens(ending)
        times = Times(
            total_s=total_s,
            wait_s=claim.waited_s,
            prefill_s=(engine.queued_s or 0.0) + (engine.prefill_s or 0.0),
            decode_s=engine.decode_s or 0.0,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            attempts=claim.attempt,
            preemptions=engine.preemptions,
        )
        line = {
            "task_id": claim.task_id,
            "tenant_id": claim.tenant_id,
            "model": claim.lane.model,
            "lane": claim.lane.queue,
            "worker": self._recorder.worker,
            "attempt": claim.attempt,
            "state": ending.state,
            "finish_reason": ending.finish_reason,
            "failure": ending.failure,
            "prompt_tokens": usage.prompt_tokens or claim.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "preemptions": engine.preemptions,
            "slots_lent": ending.preemptions,
            "queued_ms": _ms(claim.waited_s),
            "ttft_ms": ending.ttft_ms,
            "prefill_ms": _ms(times.prefill_s),
            "decode_ms": _ms(times.decode_s),
            "run_ms": _ms(run_s),
            "total_ms": _ms(total_s),
            "cost_usd_micros": ending.cost_usd_micros,
            "request_bytes": len(claim.request),
            "request_hash": self._recorder.hash(claim.request),
            "output_characters": len(output_text),
            "output_hash": self._recorder.hash(output_text),
        }
        log.info("task_ended", **line)
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

    def _count_tokens(self, ending: Ending) -> None:
        usage = ending.usage
        kinds = {"prompt": usage.prompt_tokens, "cached": usage.cached_tokens, "output": usage.output_tokens}
        billed = ending.failure is None or RULES[ending.failure].billed
        for kind, tokens in kinds.items():
            if tokens:
                metrics.TASK_TOKENS.labels(*self._labels, kind).inc(tokens)
                if billed:
                    metrics.LEDGER_TOKENS.labels(*self._labels, kind).inc(tokens)
        if billed:
            metrics.LEDGER_COST.labels(*self._labels).inc(ending.cost_usd_micros)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
