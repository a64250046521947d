"""What a grant allows of a model, said to whoever asks for more."""

from core.grants import find_breach
from core.lanes import Priority
from core.lengths import Lengths
from schemas.errors import RequestError
from storage.records import Model


def refuse_beyond_grant(
    model: Model,
    *,
    url: str,
    priority: Priority,
    lengths: Lengths,
    within: str,
    prompt_field: str,
    output_field: str,
) -> None:
    """Hold a request against the limits of its tenant's grant. Raises: RequestError naming field and limit."""
    breach = find_breach(
        model.limits,
        url=url,
        priority=priority,
        prompt_tokens=lengths.prompt_tokens,
        max_output_tokens=lengths.max_output_tokens,
    )
    if breach is None:
        return
    status, code, param = {
        "endpoints": (403, "endpoint_not_granted", within + "model"),
        "priorities": (403, "priority_not_granted", "priority"),
        "max_prompt_tokens": (400, "prompt_limit_exceeded", within + prompt_field),
        "max_output_tokens": (400, "output_limit_exceeded", within + output_field),
    }[breach.limit]
    raise RequestError(status, f"The grant of {model.name!r} limits {breach.message}", code, param)


def too_many_open(model: str, limit: int) -> RequestError:
    """What is answered when as many tasks as granted are queued or running."""
    return RequestError(
        429,
        f"The grant of {model!r} allows {limit} tasks queued and running at the same time (max_open_tasks).",
        "too_many_open_tasks",
        headers={"Retry-After": "2"},
    )
