"""From a validated request to an accepted task: what every submitting route does."""

from dataclasses import dataclass

from api.state import ApiState
from runtime.prepare import Terms, prepare
from schemas.chat import ChatCompletionRequest
from schemas.errors import RequestError, overloaded
from services.authenticate import Access
from services.submit import IdempotencyKey, KeyReusedError, submit
from storage.outbox import Outgoing
from storage.records import Task


@dataclass(frozen=True, slots=True)
class Accepted:
    """A task that is ours now; `task` is None when an idempotency key named an earlier one."""

    task_id: str
    task: Task | None


async def accept(
    state: ApiState,
    access: Access,
    request: ChatCompletionRequest,
    terms: Terms,
    *,
    idempotency: IdempotencyKey | None = None,
    within: str = "",
) -> Accepted:
    """Admit, store and publish a task. Raises: RequestError, and then nothing was stored."""
    new = await prepare(state.tokenizers, access, request, terms, within)
    if await state.backlog.of(new.lane) >= state.settings.max_queued_tasks:
        raise overloaded(f"The lane {new.lane.queue} is full.", "lane_full", 30)
    if await state.memory.full():
        raise overloaded("A store is nearly out of memory.", "store_full", 10)
    try:
        accepted = await submit(state.database, new, idempotency)
    except KeyReusedError as error:
        raise RequestError(
            422, "This Idempotency-Key was used with another body.", "idempotency_key_reused"
        ) from error
    if isinstance(accepted, str):
        return Accepted(accepted, None)
    state.publisher.put(Outgoing(new.id, new.lane))
    return Accepted(new.id, accepted)
