"""Ending tasks from the edge: the row first, then the stream, so that no stream says more than the row."""

import structlog
from redis.exceptions import RedisError

from api.state import ApiState
from core.failures import Failure
from core.states import TaskState
from schemas import events
from services.cancel import cancel, give_up

log = structlog.get_logger()


async def cancel_task(state: ApiState, tenant_id: str, task_id: str) -> TaskState | None:
    """Cancel a task; None when there was nothing to change."""
    after = await cancel(state.database, tenant_id, task_id)
    try:
        if after == TaskState.CANCELLED:
            await state.streams.close(task_id, events.FINAL[after], _data(after))
        elif after == TaskState.CANCELLING:
            await state.streams.ask_cancel(task_id)
    except RedisError as error:
        # The lease renewal brings a cancel to the worker too, and followers find the ended row.
        log.warning("cancel_not_announced", task_id=task_id, error=str(error))
    if after == TaskState.CANCELLED:
        await state.endings.tell([task_id])
    return after


async def give_up_task(state: ApiState, task_id: str, failure: Failure) -> bool:
    """Fail a task that nobody claimed yet; False when it was claimed meanwhile."""
    if not await give_up(state.database, task_id, failure):
        return False
    try:
        await state.streams.close(task_id, events.FINAL[TaskState.FAILED], _data(TaskState.FAILED, failure))
    except RedisError as error:
        log.warning("end_not_announced", task_id=task_id, error=str(error))
    await state.endings.tell([task_id])
    return True


def _data(state: TaskState, failure: Failure | None = None) -> bytes:
    return events.final_data(state, finish_reason=None, usage=None, failure=failure, failure_message=None)
