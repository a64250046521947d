"""The native tasks API: one task is one OpenAI request run later."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from core.lanes import Priority
from schemas.requests import REQUESTS
from schemas.strict import Metadata, Strict


def _served(url: str) -> str:
    if url not in REQUESTS:
        raise PydanticCustomError("url", "must be one of {urls}", {"urls": ", ".join(REQUESTS)})
    return url


class TaskCreate(Strict):
    """Body of POST /v1/tasks. `body` is validated as the request of `url`."""

    url: Annotated[str, AfterValidator(_served), Field(json_schema_extra={"enum": list(REQUESTS)})]
    body: dict[str, Any]
    # strict mode takes an enum's members only; from JSON they come as their values
    priority: Annotated[Priority, Field(strict=False)] | None = None
    deadline_s: Annotated[float, Field(gt=0, le=30 * 24 * 3600)] | None = None  # from acceptance
    metadata: Metadata | None = None
    store: bool | None = None  # false: prompt and output go once they are delivered
    webhook: str | None = None  # the URL that is told of the end
