"""Telling in Redis what Postgres has committed: the result for polls, and the stream's last event."""

from dataclasses import replace
from typing import TYPE_CHECKING

from core.ids import created_ms
from core.lanes import Priority
from schemas import events
from schemas.completion import whole_answer
from storage.limits import Reserved
from storage.records import Claim, Ending
from storage.streams import Result
from workers.progress import Progress

if TYPE_CHECKING:
    from workers.session import Session


def response_of(session: "Session", claim: Claim, progress: Progress) -> str:
    """The answer in its whole form, as JSON text."""
    info = session.engine.info
    return whole_answer(
        progress.form,
        task_id=claim.task_id,
        created=created_ms(claim.task_id) // 1000,
        model=claim.lane.model,
        fingerprint=f"headrace-{info.kind}-{info.version}",
        choices=progress.choices,
        usage=progress.usage,
        reasoning_tokens=progress.reasoning_tokens,
    ).decode()


def announce(session: "Session", claim: Claim, progress: Progress, ending: Ending) -> None:
    """Say that the task ended; a reader who misses it finds the row."""
    # nobody polls for a line of a file: it is read from the rows
    response = None if claim.lane.priority is Priority.BATCH else ending.response
    data = events.final_data(
        ending.state,
        finish_reason=ending.finish_reason,
        usage=ending.usage,
        failure=ending.failure,
        failure_message=ending.failure_message,
        reasoning_tokens=progress.reasoning_tokens,
    )
    last = progress.final(events.FINAL[ending.state], data)
    result = Result(response, _reserved(claim), ending.usage.total_tokens)
    session.chunks.append(replace(last, result=result))


def _reserved(claim: Claim) -> Reserved | None:
    if claim.reserved_tokens is None:
        return None
    return Reserved(claim.tenant_id, claim.key_id, claim.lane.model, claim.reserved_tokens)
