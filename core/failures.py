"""Failure reasons are data: whether another attempt may help, and what the caller is told. Never a body."""

from dataclasses import dataclass
from enum import StrEnum


class Failure(StrEnum):
    """Why an attempt or a task failed. Also the metric label."""

    REQUEST_REJECTED = "request_rejected"
    ENGINE_ERROR = "engine_error"
    ENGINE_DEAD = "engine_dead"
    WORKER_LOST = "worker_lost"
    WORKER_DRAINED = "worker_drained"
    FORBIDDEN = "forbidden"
    NOT_STARTED_IN_TIME = "not_started_in_time"
    TERMINATED = "terminated"
    DEADLINE = "deadline"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class FailureRule:
    """What a reason means for the task."""

    retriable: bool
    http_status: int  # of a synchronous call, and of a batch line
    message: str  # public
    counts: bool = True  # against max_attempts; a drain is nobody's fault
    blames_exposed: bool = False  # counts only against tasks that may have caused it
    billed: bool = False  # what failed on our side is free; what was asked to stop is not


RULES: dict[Failure, FailureRule] = {
    Failure.REQUEST_REJECTED: FailureRule(False, 400, "The engine refused the request."),
    Failure.ENGINE_ERROR: FailureRule(True, 500, "The engine failed on this request."),
    Failure.ENGINE_DEAD: FailureRule(True, 503, "The engine ended while the task ran.", blames_exposed=True),
    Failure.WORKER_LOST: FailureRule(True, 503, "The worker ended while the task ran.", blames_exposed=True),
    Failure.WORKER_DRAINED: FailureRule(
        True, 503, "The worker was shut down while the task ran.", counts=False
    ),
    Failure.FORBIDDEN: FailureRule(False, 403, "The tenant may no longer use this model."),
    Failure.NOT_STARTED_IN_TIME: FailureRule(
        False, 503, "No capacity became free in time. Submit it as a task to wait longer."
    ),
    Failure.TERMINATED: FailureRule(False, 500, "An operator terminated the task.", billed=True),
    Failure.DEADLINE: FailureRule(False, 504, "The deadline passed.", billed=True),
    Failure.INTERNAL: FailureRule(True, 500, "An internal error ended the attempt."),
}


def is_dead(failure: Failure | None) -> bool:
    """Say whether a failed task ran out of attempts, so that an operator may want to try it again."""
    return failure is not None and RULES[failure].retriable
