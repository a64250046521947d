"""Query parameters that several routes take."""

import re
from typing import Annotated, Any

from fastapi import Query
from pydantic import BeforeValidator


def _whole(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"-?[0-9]{1,9}", value):
        raise ValueError("must be a whole number")  # pydantic would take 5.0 and 1_0 for one
    return value


PageSize = Annotated[int, BeforeValidator(_whole), Query(ge=1, le=100)]
