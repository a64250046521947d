"""The task as its owner sees it."""

from typing import Any

import orjson

from core.lanes import Priority
from core.states import FINAL
from schemas.completion import usage_object
from schemas.events import failure_object
from storage.records import Task


def task_object(task: Task, response: str | None = None) -> dict[str, Any]:
    """Build the wire form; `response` is the body of a task that has one."""
    base = f"/v1/tasks/{task.id}"
    return {
        "id": task.id,
        "object": "task",
        "status": task.state,
        "url": task.url,
        "model": task.lane.model,
        "priority": task.lane.priority,
        "lane": task.lane.queue,
        "attempt": task.attempt,
        "created_at": int(task.created_at.timestamp()),
        "started_at": int(task.started_at.timestamp()) if task.started_at else None,
        "finished_at": int(task.finished_at.timestamp()) if task.finished_at else None,
        "expires_at": int(task.deadline_at.timestamp()),
        "estimated_wait_s": None if task.estimated_wait_s is None else round(task.estimated_wait_s, 2),
        "prompt_tokens": task.prompt_tokens,
        "max_output_tokens": task.max_output_tokens,
        "finish_reason": task.finish_reason,
        "usage": usage_object(task.usage) if task.usage else None,
        "cost_usd_micros": task.cost_usd_micros,
        "timings": _timings(task),
        "error": failure_object(task.failure, task.failure_message),
        "response": orjson.Fragment(response) if response is not None else None,
        "retry_of": task.retry_of,
        "metadata": task.metadata,
        "urls": {"self": base, "events": f"{base}/events", "cancel": f"{base}/cancel"},
    }


def _timings(task: Task) -> dict[str, int | None]:
    """Milliseconds since acceptance: to the first claim, to the first token, and to the end."""
    started, finished = task.started_at, task.finished_at
    return {
        "queued_ms": round((started - task.created_at).total_seconds() * 1000) if started else None,
        "first_token_ms": task.ttft_ms,
        "total_ms": round((finished - task.created_at).total_seconds() * 1000) if finished else None,
    }


def poll_after_s(task: Task) -> int:
    """Return how long a polling caller should wait before asking again."""
    return 1 if task.lane.priority != Priority.BATCH or task.state in FINAL else 5
