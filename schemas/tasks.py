"""The native tasks API: one task is one OpenAI request run later."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from core.lanes import Priority
from schemas.chat import Strict

# no NUL: Postgres can't store it in jsonb
MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00]*$")]
MetadataValue = Annotated[str, StringConstraints(max_length=512, pattern=r"^[^\x00]*$")]


class TaskCreate(Strict):
    """Body of POST /v1/tasks. `body` is validated as the request of `url`."""

    url: Literal["/v1/chat/completions"]
    body: dict[str, Any]
    # strict mode takes an enum's members only; from JSON they come as their values
    priority: Annotated[Priority, Field(strict=False)] | None = None
    deadline_s: Annotated[float, Field(gt=0, le=30 * 24 * 3600)] | None = None  # from acceptance
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
