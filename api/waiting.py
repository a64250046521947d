"""Why a queued task is waiting, as its owner is told."""

import time
from typing import Any

from api.state import ApiState
from services.explain import Circumstances, look_at
from storage.records import Task


async def waiting_object(state: ApiState, task: Task) -> dict[str, Any] | None:
    """Say where a queued task stands and what it waits for; None when it waits no more.

    `waiting_for`: no_worker (none takes this lane), model_loading, tenant_limit (its tenant runs as many tasks as it
    may), tenant_share (others' work goes before, by priority or by their share), slots.
    """
    found = await look_at(state.database, task.lane, task.id)
    if found is None:
        return None
    own = found.standing
    if own.sent and not own.at_bound:
        return _object(task, 1, 0, 0.0, _missing(found) or "slots")
    # what could not be counted to its end is taken from the whole backlog
    estimate = await state.admission.estimate(
        task,
        own.tasks if own.whole else None,
        own.tokens if own.whole else None,
        at_bound=own.at_bound,
    )
    waiting_for = _missing(found) or "slots"
    if waiting_for == "slots" and (own.at_bound or estimate.others_ahead):
        waiting_for = "tenant_limit" if own.at_bound else "tenant_share"
    return _object(task, estimate.position, estimate.tokens_ahead, estimate.wait_s, waiting_for)


def _missing(found: Circumstances) -> str | None:
    if found.ready:
        return None
    return "model_loading" if found.loading else "no_worker"


def _object(task: Task, position: int, tokens: int, wait_s: float | None, waiting_for: str) -> dict[str, Any]:
    blocked = waiting_for in ("no_worker", "model_loading")
    return {
        "lane": task.lane.queue,
        "position": position,
        "tokens_ahead": tokens,
        "estimated_wait_s": None if blocked or wait_s is None else round(wait_s, 1),
        "estimated_start_at": None if blocked or wait_s is None else round(time.time() + wait_s),
        "waiting_for": waiting_for,
    }
