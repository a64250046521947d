"""What a webhook tells: that something ended, and its id. Texts are fetched with a key, never sent.

Source: Standard Webhooks (payload structure); OpenAI's webhook events.
"""

from typing import Annotated, Any

import orjson
from pydantic import Field

from core.batches import BatchState
from core.states import TaskState
from schemas.events import FINAL
from schemas.strict import Strict

_RESPONSE = {
    TaskState.COMPLETED: "response.completed",
    TaskState.FAILED: "response.failed",
    TaskState.EXPIRED: "response.failed",
    TaskState.INCOMPLETE: "response.incomplete",
    TaskState.CANCELLED: "response.cancelled",
}
_CUT = ("length", "content_filter")


class SecretCreate(Strict):
    """Body of POST /v1/webhooks/secrets."""

    overlap_s: Annotated[float, Field(ge=0, le=7 * 24 * 3600)] | None = (
        None  # the earlier ones sign on for so long
    )


def event_type(state: TaskState, finish_reason: str | None, response_id: str | None) -> str:
    """Name the event of a task's end, or of its response's where it is one."""
    if response_id is None:
        return FINAL[state]
    cut = state is TaskState.COMPLETED and finish_reason in _CUT
    return "response.incomplete" if cut else _RESPONSE[state]


def batch_event_type(state: BatchState) -> str:
    """Name the event of a batch's end, as OpenAI does."""
    return f"batch.{state}"


def event_body(delivery_id: str, kind: str, ended_s: int, about: dict[str, Any]) -> str:
    """Encode the event; the text is what is signed and sent, at every try the same."""
    event = {"id": delivery_id, "object": "event", "type": kind, "created_at": ended_s, "data": about}
    return orjson.dumps(event).decode()
