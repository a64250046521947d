"""What all request bodies have in common: no unknown field, no coercion, and the kinds of values in them.

Strict: a value of a wrong type is refused, never coerced; such a value would hang the engine without an error.
Every optional field takes null, as the official clients send it.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

INT64_MAX = 2**63 - 1


class Strict(BaseModel):
    """Base of request bodies: no unknown field, no coercion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def clash(field: str, what: str) -> PydanticCustomError:
    """Make the error of a field that does not go with another one: its name is kept for the response."""
    return PydanticCustomError("clash", "{field} {what}", {"field": field, "what": what})


Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]
# no NUL: Postgres can't store it in jsonb
MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00]*$")]
MetadataValue = Annotated[str, StringConstraints(max_length=512, pattern=r"^[^\x00]*$")]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
