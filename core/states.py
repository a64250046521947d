"""The task's states, who moves it out of each, and the one table of legal transitions.

The same rules stand as CHECK constraints in `storage.tables`; every write is a compare-and-set on
(state, attempt).

Source: docs/decisions/0002-task-row-is-the-truth.md.
"""

from enum import StrEnum


class TaskState(StrEnum):
    """Where a task is. Values are what callers see as `status`."""

    QUEUED = "queued"
    """Accepted, not claimed. A worker claims it; a cancel or its deadline ends it."""

    IN_PROGRESS = "in_progress"
    """Claimed by one attempt, whose lease is alive or about to be rescued. The worker settles it."""

    CANCELLING = "cancelling"
    """Running, its cancel asked for. The worker settles it; a rescue ends it as cancelled."""

    COMPLETED = "completed"
    """Final: the whole output is stored."""

    FAILED = "failed"
    """Final: a fatal reason, or a retriable one after the last attempt."""

    INCOMPLETE = "incomplete"
    """Final: its deadline passed while it ran; the partial output is stored."""

    CANCELLED = "cancelled"
    """Final: the caller cancelled it; what was generated until then is stored."""

    EXPIRED = "expired"
    """Final: its deadline passed while it was queued, before its first attempt or between two."""


FINAL = frozenset(
    {TaskState.COMPLETED, TaskState.FAILED, TaskState.INCOMPLETE, TaskState.CANCELLED, TaskState.EXPIRED}
)
RUNNING = frozenset({TaskState.IN_PROGRESS, TaskState.CANCELLING})
OPEN = frozenset(TaskState) - FINAL

TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    TaskState.QUEUED: frozenset(
        {TaskState.IN_PROGRESS, TaskState.CANCELLED, TaskState.EXPIRED, TaskState.FAILED}
    ),
    # back to queued: rescue of an expired lease, hand-back at drain
    TaskState.IN_PROGRESS: (FINAL | {TaskState.CANCELLING, TaskState.QUEUED}) - {TaskState.EXPIRED},
    TaskState.CANCELLING: FINAL - {TaskState.EXPIRED},
    **{state: frozenset() for state in FINAL},
}


def may_move(before: TaskState, after: TaskState) -> bool:
    """Say whether the transition is legal."""
    return after in TRANSITIONS[before]
