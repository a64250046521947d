"""Which requests may take a slot of the engine, and which one gives its slot to a person who waits.

A worker runs at most `total` requests. Some slots are reserved for interactive work; one is kept from it, so
that no flood of it stops everything else. A ceiling on a length class keeps long prompts from filling the engine.

Units: tokens; `*_s` seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from core.lanes import LengthClass, Priority

Key = TypeVar("Key")
DEADLINE_MARGIN = 2.0  # a task is left alone unless it could take this many times as long as it will
KEPT_FROM = 4  # slots; with fewer, none can be kept from interactive work


class Kind(NamedTuple):
    """What a slot's rules look at: a lane without its model."""

    priority: Priority
    length_class: LengthClass


Held = Mapping[Kind, int]  # how many requests of each kind hold a slot


@dataclass(frozen=True, slots=True)
class SlotRules:
    """How the slots of one worker are shared."""

    total: int
    reserved: int = 0  # the last so many are for interactive work
    ceilings: Mapping[LengthClass, int] = field(default_factory=dict)  # running at once; absent: no ceiling
    max_preemptions: int = 0  # a task; 0: none gives its slot away
    rest_s: float = 5.0  # a task that ran for less since it got its slot is left alone

    def __post_init__(self) -> None:
        if self.total < 1 or not 0 <= self.reserved < self.total:
            raise ValueError(f"{self.reserved} of {self.total} slots can't be reserved: one must be left")
        if any(ceiling < 1 for ceiling in self.ceilings.values()):
            raise ValueError("a ceiling below 1 would leave its length class waiting for ever")

    @property
    def shared(self) -> int:
        """Slots that any work may take."""
        return self.total - self.reserved

    @property
    def kept(self) -> int:
        """Slots that interactive work may not take."""
        return 1 if self.total >= KEPT_FROM else 0


def default_reserved(total: int) -> int:
    """An eighth, and at least one where another is left."""
    return max(1, total // 8) if total > 1 else 0


def default_ceilings(total: int, served: Iterable[LengthClass]) -> dict[LengthClass, int]:
    """Long work may fill half of the slots, unless the worker serves nothing shorter."""
    classes = set(served)
    return {LengthClass.LONG: max(1, total // 2)} if classes - {LengthClass.LONG} else {}


def format_ceilings(ceilings: Mapping[LengthClass, int]) -> str:
    """Write ceilings as `medium:8,long:4`."""
    return ",".join(f"{length_class}:{most}" for length_class, most in sorted(ceilings.items()))


def parse_ceilings(text: str) -> dict[LengthClass, int]:
    """Read what `format_ceilings` wrote. Raises: ValueError."""
    pairs = [part.split(":") for part in text.split(",") if part]
    return {LengthClass(length_class): int(most) for length_class, most in pairs}


class Tally:
    """How many requests hold a slot, counted every way that the rules look at."""

    __slots__ = ("classes", "kinds", "priorities", "total")

    def __init__(self, held: Held | None = None) -> None:
        # every key is there from the start: another thread may read while one counts
        self.total = 0
        self.priorities = dict.fromkeys(Priority, 0)
        self.classes = dict.fromkeys(LengthClass, 0)
        self.kinds = {Kind(priority, length): 0 for priority in Priority for length in LengthClass}
        for kind, count in (held or {}).items():
            self.add(kind, count)

    def add(self, kind: Kind, count: int = 1) -> None:
        """Count more, or fewer with a number below 0."""
        self.total += count
        self.priorities[kind.priority] += count
        self.classes[kind.length_class] += count
        self.kinds[kind] += count

    def plus(self, kinds: Iterable[Kind]) -> "Tally":
        """Count these too, in a copy."""
        more = Tally(self.kinds)
        for kind in kinds:
            more.add(kind)
        return more


def may_start(rules: SlotRules, held: Tally, kind: Kind, batch_size: int | None = None) -> bool:
    """Say whether a request of this kind may take a slot now.

    `batch_size`: how many batch requests may run at once, within the shared slots; None: all of those.
    """
    priority, length_class = kind
    ceiling = rules.ceilings.get(length_class)
    if held.total >= rules.total or (ceiling is not None and held.classes[length_class] >= ceiling):
        return False
    interactive = held.priorities[Priority.INTERACTIVE]
    if priority is Priority.INTERACTIVE:
        return interactive < rules.total - rules.kept
    if held.total - interactive >= rules.shared:
        return False
    return priority is not Priority.BATCH or batch_size is None or held.priorities[priority] < batch_size


def makes_room(rules: SlotRules, held: Tally, victim: Kind, waiting: Kind) -> bool:
    """Say whether `waiting` could start in the slot of a running `victim`."""
    left = held.plus(())
    left.add(victim, -1)
    return may_start(rules, left, waiting)


@dataclass(frozen=True, slots=True)
class Candidate(Generic[Key]):
    """A running batch task that could go on later from the tokens it has sent."""

    key: Key
    kind: Kind
    recompute_tokens: int  # prompt and sent tokens: what the engine must read again
    left_tokens: int  # that it may still generate
    preemptions: int  # so far
    ran_s: float  # since it got its slot
    remaining_s: float  # to its deadline
    token_s: float  # it takes for a token


def choose_victim(rules: SlotRules, candidates: Sequence[Candidate[Key]]) -> Candidate[Key] | None:
    """The task that loses least by giving its slot away; None when each is to be left alone.

    Left alone are tasks that gave theirs away often enough, or just got one, or would miss their deadline.
    """
    free = [
        one
        for one in candidates
        if one.preemptions < rules.max_preemptions
        and one.ran_s >= rules.rest_s
        and one.remaining_s > DEADLINE_MARGIN * one.left_tokens * one.token_s
    ]
    # among equals the one that would have held its slot longest
    return min(free, key=lambda one: (one.recompute_tokens, -one.left_tokens), default=None)
