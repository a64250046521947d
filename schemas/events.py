"""Types of a task's events, and which of them end its stream."""

import orjson

from core.failures import RULES, Failure
from core.pricing import Usage
from core.states import TaskState
from schemas.completion import usage_object

QUEUED = "task.queued"
STARTED = "task.started"
DELTA = "task.delta"
RESTARTED = "task.restarted"  # what was streamed so far is void

FINAL = {
    TaskState.COMPLETED: "task.completed",
    TaskState.FAILED: "task.failed",
    TaskState.INCOMPLETE: "task.incomplete",
    TaskState.CANCELLED: "task.cancelled",
    TaskState.EXPIRED: "task.expired",
}
FINAL_STATES = {event: state for state, event in FINAL.items()}


def is_whole(newest: bytes, output_tokens: int) -> bool:
    """Say whether a stream whose newest task.delta has this data (empty: none came) holds all the output."""
    sent = orjson.loads(newest)["tokens"][1] if newest else 0
    return bool(sent >= output_tokens)


def started_data(attempt: int) -> bytes:
    """Data of task.started and task.restarted."""
    return orjson.dumps({"attempt": attempt})


def final_data(
    state: TaskState,
    *,
    finish_reason: str | None,
    usage: Usage | None,
    failure: Failure | None,
    failure_message: str | None,
    reasoning_tokens: int | None = None,
) -> bytes:
    """Data of the event that ends a stream."""
    return orjson.dumps(
        {
            "status": state,
            "finish_reason": finish_reason,
            "usage": usage_object(usage, reasoning_tokens) if usage else None,
            "error": failure_object(failure, failure_message),
        }
    )


def failure_object(failure: Failure | None, message: str | None) -> dict[str, str | None] | None:
    """Build the public form of a failure."""
    if failure is None:
        return None
    return {"code": failure, "message": message or RULES[failure].message}
