"""From a validated request to an accepted task: what every submitting route does."""

from collections.abc import Callable
from dataclasses import replace

from api.limits import draw, put_back, warn
from api.state import ApiState
from runtime import metrics
from runtime.granted import too_many_open
from runtime.prepare import Terms, prepare
from runtime.tracing import current_request
from schemas.errors import RequestError, overloaded
from schemas.generation import Generation
from services.authenticate import Access
from services.hold import BudgetExhaustedError
from services.once import Earlier, IdempotencyKey, KeyInFlightError, KeyReusedError
from services.submit import TooManyOpenError, submit
from storage.outbox import Outgoing
from storage.records import Task


async def accept(
    state: ApiState,
    access: Access,
    request: Generation,
    terms: Terms,
    *,
    idempotency: IdempotencyKey | None = None,
    answer: Callable[[Task], Earlier] | None = None,
    within: str = "",
) -> Task | Earlier:
    """Admit, store and publish a task; or return what was accepted under the same key before.

    Raises: RequestError, and then nothing was stored.
    """
    new = await prepare(state.tokenizers, access, request, terms, within)
    wait_s = await state.admission.admit(new, terms.start_within_s)
    if await state.memory.full():
        raise overloaded("A store is nearly out of memory.", "store_full", 10)
    request_trace = current_request()
    if request_trace is not None and (context := request_trace.begin(new.id)) is not None:
        new = replace(new, traceparent=str(context))
    new = await draw(state, access, new)
    try:
        accepted = await submit(state.database, new, idempotency, answer)
    except (KeyReusedError, KeyInFlightError) as error:
        await put_back(state, new)
        raise refusal_of(error) from error
    except BudgetExhaustedError:
        await put_back(state, new)
        raise
    except TooManyOpenError as error:
        await put_back(state, new)
        raise too_many_open(new.lane.model, error.limit) from error
    warn(access)
    if isinstance(accepted, Task):
        accepted = replace(accepted, estimated_wait_s=wait_s)
        metrics.count_accepted(new.lane, new.caller.tenant_class)
        state.publisher.put(Outgoing(new.id, new.lane, new.traceparent, new.caller.tenant_id))
        if request_trace is not None:
            request_trace.admitted(new, accepted.created_at)
    else:
        await put_back(state, new)
    return accepted


def refusal_of(error: KeyReusedError | KeyInFlightError) -> RequestError:
    """What the caller of a key that can't be used now is told."""
    if isinstance(error, KeyReusedError):
        return RequestError(422, "This Idempotency-Key was used with another body.", "idempotency_key_reused")
    return RequestError(
        409,
        "A request with this Idempotency-Key is being accepted now; ask again.",
        "idempotency_key_in_flight",
        headers={"Retry-After": "1"},
    )
