"""Moments as callers see them."""

from datetime import datetime
from typing import overload


@overload
def seconds_of(moment: datetime) -> int: ...
@overload
def seconds_of(moment: None) -> None: ...
def seconds_of(moment: datetime | None) -> int | None:
    """Return a moment in whole seconds since the epoch, as the OpenAI surface writes times."""
    return None if moment is None else int(moment.timestamp())
