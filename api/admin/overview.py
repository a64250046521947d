"""/v1/admin/overview: lanes, workers and the last minute at one look, for `headrace top` and for people."""

from typing import Annotated, Any

from fastapi import Query, Request

from api.admin import workers
from api.admin.edge import admin_router
from api.state import state_of
from services.measure import measure_lanes, measure_recent
from services.workers import list_workers

router = admin_router()


@router.get("/overview")
async def get(request: Request, window_s: Annotated[float, Query(ge=1, le=3600)] = 60.0) -> dict[str, Any]:
    """Describe the platform: what waits and runs now, and what ended within the last `window_s`."""
    database = state_of(request).database
    lanes, outbox = await measure_lanes(database)
    recent = await measure_recent(database, window_s=window_s)
    found, _ = await list_workers(database, events=1)
    return {
        "object": "overview",
        "window_s": window_s,
        "lanes": [
            {
                "lane": lane.queue,
                "model": lane.model,
                "length_class": lane.length_class,
                "priority": lane.priority,
                "queued": figures.queued,
                "running": figures.running,
                "oldest_s": round(figures.oldest_s, 3),
            }
            for lane, figures in sorted(lanes.items(), key=lambda one: one[0].queue)
        ],
        "outbox": {"tasks": outbox.tasks, "lag_s": round(outbox.lag_s, 3)},
        "recent": [
            {
                "priority": priority,
                "ended": figures.ended,
                "failed": figures.failed,
                "ttft_p50_ms": figures.ttft_p50_ms,
                "ttft_p99_ms": figures.ttft_p99_ms,
                "total_p50_ms": figures.total_p50_ms,
                "output_tokens": figures.output_tokens,
                "cost_usd_micros": figures.cost_usd_micros,
            }
            for priority, figures in sorted(recent.items())
        ],
        "workers": [workers.describe(worker) for worker in found],
    }
