"""Webhooks of ended tasks and batches: queued from the rows, and sent, a bounded number at once, until they are taken.

At least once, under one id: a delivery that was claimed and not noted is sent again when its lease ends.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping

import structlog
from opentelemetry.trace import SpanKind
from sqlalchemy.ext.asyncio import AsyncEngine

from core.traces import TraceContext, trace_of
from core.webhooks import Outcome, outcome_of, retry_in_s, secret_of
from runtime import metrics
from runtime.sending import TIMEOUT_S, WebhookSender
from runtime.tracing import BATCH, DELIVER, Span, Tracer
from services.tell import claim_deliveries, note_try, queue_deliveries
from storage.webhooks import Delivery, Tried

_QUEUE_LIMIT = 500
_AT_ONCE = 64
_PER_TENANT = 8  # of those at once: a slow receiver holds no more
_LEASE_S = 2 * TIMEOUT_S
log = structlog.get_logger()


class Webhooks:
    """The webhooks' tick: it starts deliveries, which go on beside it."""

    def __init__(
        self, database: AsyncEngine, sender: WebhookSender, pepper: bytes, tracer: Tracer | None = None
    ) -> None:
        self._database, self._sender, self._pepper, self._tracer = database, sender, pepper, tracer
        self._running: dict[asyncio.Task[None], str] = {}  # → its tenant
        self._ended: Counter[str] = Counter()

    async def __call__(self) -> Mapping[str, int]:
        """Queue what ended, start what is due; the counts of tries are of those that ended since."""
        queued = await queue_deliveries(self._database, limit=_QUEUE_LIMIT)
        if free := _AT_ONCE - len(self._running):
            held = Counter(self._running.values())
            claimed = await claim_deliveries(
                self._database,
                limit=free,
                per_tenant=_PER_TENANT,
                busy=[tenant for tenant, count in held.items() if count >= _PER_TENANT],
                lease_s=_LEASE_S,
            )
            for delivery in claimed:
                task = asyncio.create_task(self._deliver(delivery))
                self._running[task] = delivery.tenant_id
                task.add_done_callback(self._running.pop)
        ended, self._ended = self._ended, Counter()
        return {"queued": queued, **ended}

    async def settled(self) -> None:
        """Wait for the deliveries that are under way."""
        await asyncio.gather(*self._running)

    async def close(self) -> None:
        """Stop; what was under way is sent again by the next leader."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._sender.close()

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            tried, asked_s = await self._try(delivery)
            outcome = outcome_of(tried.status_code)
            retry_s = None
            if outcome is Outcome.FAILED:
                retry_s = retry_in_s(delivery.attempts, random.random(), asked_s)
            await note_try(self._database, delivery, tried, outcome, retry_s)
        except Exception as error:  # noqa: BLE001 - the lease ends, and it is tried again
            log.warning("webhook_not_noted", delivery=delivery.id, error=f"{type(error).__name__}: {error}")
            return
        label = "delivered" if outcome is Outcome.DELIVERED else "dead" if retry_s is None else "retried"
        metrics.WEBHOOKS.labels(label).inc()
        self._trace(delivery, tried, label)
        self._ended[label] += 1

    def _trace(self, delivery: Delivery, tried: Tried, label: str) -> None:
        """The try as a span of its task's or batch's trace; one that failed is kept whatever the sampling says."""
        context = TraceContext.parse(delivery.traceparent)
        if delivery.batch_id is not None:
            context = trace_of(delivery.batch_id, BATCH, sampled=True)
        if self._tracer is None or context is None:
            return
        if not context.sampled and label == "delivered":
            return
        ended_ns = time.time_ns()
        error = None if label == "delivered" else str(tried.status_code or "no_answer")
        span = Span(
            DELIVER,
            context.of_task(delivery.id, f"{DELIVER}.{delivery.attempts}"),
            ended_ns - tried.duration_ms * 1_000_000,
            ended_ns,
            context,
            SpanKind.CLIENT,
            {
                "headrace.task.id": delivery.task_id,
                "headrace.batch.id": delivery.batch_id,
                "headrace.tenant.id": delivery.tenant_id,
                "headrace.delivery.id": delivery.id,
                "headrace.delivery.attempt": delivery.attempts,
                "http.request.method": "POST",
                "http.response.status_code": tried.status_code,
                "error.type": error,
            },
            error=error,
        )
        self._tracer.emit([span])

    async def _try(self, delivery: Delivery) -> tuple[Tried, float | None]:
        secrets = [secret_of(secret_id, self._pepper) for secret_id in delivery.secret_ids]
        if not secrets:
            return Tried(None, "no secret is in force: POST /v1/webhooks/secrets makes one", 0), None
        return await self._sender.send(delivery.url, delivery.id, delivery.body, secrets)
