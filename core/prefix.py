"""Batch work with a common beginning runs near each other, so that the engine finds the prefix in its cache.

The key says which tasks begin alike; it is computed once, from the request, and says nothing about its text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from core.order import Head

_CHARACTERS = 512  # of a prompt without instructions: more than a block of the engine's prefix cache
RUN = 64  # tasks of one prefix in a row before an older one of another goes


def prefix_key(body: Mapping[str, Any]) -> int:
    """Return a key (64 bits, signed) that is equal for requests that begin alike."""
    return int.from_bytes(
        blake2b(_beginning(body).encode(errors="replace"), digest_size=8).digest(), signed=True
    )


def _beginning(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    if isinstance(messages, list) and messages:
        first = messages[0]
        text = str(first.get("content"))
        # instructions are what many requests share; what follows is each one's own
        return text if first.get("role") in ("system", "developer") else text[:_CHARACTERS]
    return str(body.get("instructions") or body.get("prompt") or body.get("input") or "")[:_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Streak:
    """The prefix that a group's newest tasks had, and how many in a row."""

    prefix: int
    length: int


def by_prefix(heads: Sequence[Head], mates: Sequence[Head], streak: Streak | None) -> list[Head]:
    """Order one group: the running prefix until its run is over, then prefix by prefix, lowest rank first.

    What is more than a run comes after a run of each: it waits for the others, and for nothing else.

    `heads` and `mates` (tasks of the running prefix, further back) are in rank order.
    """
    order: dict[int | None, dict[str, Head]] = {}
    for head in [*heads, *mates]:
        order.setdefault(head.prefix, {}).setdefault(head.id, head)
    runs, left = list(order), RUN
    if streak is not None and streak.prefix in order:
        over = streak.length >= RUN
        runs.remove(streak.prefix)
        runs.insert(len(runs) if over else 0, streak.prefix)
        left = RUN if over else RUN - streak.length
    ordered, rest = list[Head](), list[Head]()
    for prefix in runs:
        run = list(order[prefix].values())
        most = left if streak is not None and prefix == streak.prefix else RUN
        ordered += run[:most]
        rest += run[most:]
    return ordered + rest


def lengthen(streak: Streak | None, picked: Sequence[Head]) -> Streak | None:
    """Return the streak after a group's picks."""
    for head in picked:
        if head.prefix is None:
            streak = None
        elif streak is not None and streak.prefix == head.prefix:
            streak = Streak(head.prefix, streak.length + 1)
        else:
            streak = Streak(head.prefix, 1)
    return streak
