"""/v1/admin/workers: who runs which model, how well, and how that changed."""

from typing import Any

from fastapi import Request

from api.admin.edge import admin_router
from api.state import state_of
from core.times import seconds_of
from services.workers import list_workers
from storage.presence import SeenWorker, WorkerEvent

router = admin_router()
_EVENTS = 200  # the newest, of all workers together


def describe(worker: SeenWorker) -> dict[str, Any]:
    """Build a worker's wire form."""
    row = worker.row
    return {
        "id": row.name,
        "object": "worker",
        "model": row.model,
        "engine": row.engine,
        "engine_version": row.engine_version,
        "length_classes": row.length_classes.split(","),
        "max_num_seqs": row.max_num_seqs,
        "running": row.running,
        "output_tokens_per_s": round(row.output_tokens_per_s, 1),
        "state": row.state,
        "health": row.health,
        "reasons": row.reasons,
        "started_at": seconds_of(worker.started_at),
        "seen_at": seconds_of(worker.seen_at),
    }


def _event(event: WorkerEvent) -> dict[str, Any]:
    return {
        "object": "worker_event",
        "worker": event.worker,
        "model": event.model,
        "before": event.before,
        "health": event.health,
        "reasons": event.reasons,
        "created_at": seconds_of(event.created_at),
    }


@router.get("/workers")
async def list_(request: Request) -> dict[str, Any]:
    """List the workers that are there, and the newest changes of health, of workers that are gone too."""
    found, events = await list_workers(state_of(request).database, events=_EVENTS)
    return {
        "object": "list",
        "data": [describe(worker) for worker in found],
        "events": [_event(event) for event in events],
        "has_more": False,
    }
