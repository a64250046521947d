"""Ending the streams of tasks that the control process ended."""

import structlog
from redis.exceptions import RedisError

from core.failures import Failure
from core.states import TaskState
from schemas import events
from storage.streams import EventStreams

log = structlog.get_logger()


async def announce(streams: EventStreams, task_id: str, state: TaskState, failure: Failure | None) -> None:
    """Append the final event; readers that miss it find the row."""
    data = events.final_data(
        state,
        finish_reason=None,
        usage=None,
        failure=failure,
        failure_message=None,
    )
    try:
        await streams.close(task_id, events.FINAL[state], data)
    except RedisError as error:
        log.warning("end_not_announced", task_id=task_id, error=str(error))
