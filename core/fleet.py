"""What the replicas can start soon: the credit by which the broker's queues are kept short.

A message in a Redis list can't be reordered any more, so only what starts within about a second goes there.
Whether something may start is the rule of the workers themselves (`core.slots`).

Units: slots are sequences of an engine.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from core.lanes import LengthClass, Priority
from core.slots import Kind, SlotRules

# Messages that wait in the broker so that no slot is idle until the dispatcher looks again. While only batch work
# waits it looks less often: nobody minds who of it is next, and each look takes time from the engine on a small machine
AHEAD_S = {Priority.INTERACTIVE: 0.25, Priority.STANDARD: 0.25, Priority.BATCH: 2.0}
# Of batch work at least one part in so many of the slots, up to a number: requests that began together end together
BURST, BURST_MOST = 8, 8


@dataclass(slots=True)
class Replica:
    """One ready worker."""

    name: str
    length_classes: frozenset[LengthClass]
    rules: SlotRules
    held: dict[Kind, int] = field(default_factory=dict)  # slots by what runs there
    coming: dict[Kind, int] = field(default_factory=dict)  # on its way there

    def free(self, kind: Kind) -> int:
        """Return how many requests of a kind could start now, below 0 where more are on their way than can.

        Interactive ones may take the place of batch work: that gives its slot away. What is on its way at a lower
        priority is overtaken.
        """
        rules, person = self.rules, kind.priority is Priority.INTERACTIVE
        # what a request of this kind finds in its way
        standing = Counter(
            {one: n for one, n in self.held.items() if not (person and one.priority is Priority.BATCH)}
        )
        standing.update({one: n for one, n in self.coming.items() if one.priority.rank <= kind.priority.rank})
        interactive = sum(count for held, count in standing.items() if held.priority is Priority.INTERACTIVE)
        total = sum(standing.values())
        free = rules.total - total
        free = min(
            free, rules.total - rules.kept - interactive if person else rules.shared - total + interactive
        )
        if kind.length_class in rules.ceilings:
            of_class = sum(
                count for held, count in standing.items() if held.length_class is kind.length_class
            )
            free = min(free, rules.ceilings[kind.length_class] - of_class)
        return free


class Fleet:
    """The replicas of one model. `ahead`: what each may have waiting beyond its slots, by priority."""

    def __init__(self, replicas: Iterable[Replica], *, finished_per_s: float = 0.0) -> None:
        self.replicas = list(replicas)
        share = finished_per_s / len(self.replicas) if self.replicas else 0.0
        self.ahead = {priority: 1 + math.ceil(share * ahead_s) for priority, ahead_s in AHEAD_S.items()}

    def serves(self, length_class: LengthClass) -> bool:
        """Say whether any replica takes this class."""
        return any(length_class in replica.length_classes for replica in self.replicas)

    def room(self, kind: Kind) -> int:
        """Return how many requests of a kind could be sent."""
        return sum(max(0, self._room(replica, kind)) for replica in self._able(kind))

    def most_room(self, priority: Priority) -> int:
        """Return how many requests of a priority could be sent, in the class with most room."""
        return max(self.room(Kind(priority, length_class)) for length_class in LengthClass)

    def take(self, kind: Kind, *, force: bool = False) -> bool:
        """Note that a request is sent; False when no replica has room for it.

        The replica that takes the fewest classes gets it: the others stay free for what only they take. `force`:
        it was sent already.
        """
        able = self._able(kind)
        if not force:
            able = [replica for replica in able if self._room(replica, kind) > 0]
        if not able:
            return False
        best = min(able, key=lambda replica: (len(replica.length_classes), -replica.free(kind)))
        best.coming[kind] = best.coming.get(kind, 0) + 1
        return True

    def runs_short(self, kind: Kind) -> bool:
        """Say whether a replica has less than half of this kind ahead of what it may have."""
        return any(
            2 * replica.free(kind) > -self._ahead(replica, kind.priority) for replica in self._able(kind)
        )

    def saturated(self) -> bool:
        """Say whether no replica has a slot for more work that waits."""
        return all(
            replica.free(Kind(Priority.BATCH, length_class)) <= 0
            for replica in self.replicas
            for length_class in replica.length_classes
        )

    def _able(self, kind: Kind) -> list[Replica]:
        return [replica for replica in self.replicas if kind.length_class in replica.length_classes]

    def _room(self, replica: Replica, kind: Kind) -> int:
        return replica.free(kind) + self._ahead(replica, kind.priority)

    def _ahead(self, replica: Replica, priority: Priority) -> int:
        ahead, total = self.ahead[priority], replica.rules.total
        if priority is Priority.BATCH:
            ahead = max(ahead, min(total // BURST, BURST_MOST))
        return min(ahead, total)
