"""How usage may be asked for: by what it is grouped, and over which days."""

from enum import StrEnum


class Group(StrEnum):
    """What a row of usage is of. Several together: of each combination that was used."""

    DAY = "day"  # UTC, on which the task ended
    MODEL = "model"
    VERSION = "version"  # of the model, as registered when the task was accepted
    KEY = "key"
    PRIORITY = "priority"
    BATCH = "batch"  # null: no batch
    TENANT = "tenant"


def parse_groups(text: str, allowed: frozenset[Group]) -> tuple[Group, ...]:
    """Read `day,model`. Raises: ValueError naming what is unknown or comes twice."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for place, name in enumerate(names):
        if name not in allowed:
            raise ValueError(
                f"{name!r} is not one of {', '.join(group for group in Group if group in allowed)}"
            )
        if name in names[:place]:
            raise ValueError(f"{name!r} comes twice")
    return tuple(Group(name) for name in names)
