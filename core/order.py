"""Which tasks go next: the one place where priorities, tenants, lengths, deadlines and age meet.

1. Priorities go in order. One that has waited too long gets every `EVERY`-th place, so none starves.
2. Inside a priority the tenant with the smallest virtual token counter goes next (`core.fair_share`).
3. Inside a tenant the lowest rank goes next: shorter ones first, of batch work the longer, bounded by age,
   deadlines in sight (`core.ranking`); batch work keeps to one prefix for a while (`core.prefix`).

A task whose deadline can't be met any more is named as late and takes nobody's place. A tenant that runs as many
tasks as it may holds nobody up either.

Units: `*_s` seconds, tokens of prompt and maximum output together.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.fair_share import charge
from core.fleet import Fleet
from core.lanes import LengthClass, Priority
from core.slots import Kind

EVERY = 8  # a priority that has waited too long gets one place in so many
FIFO = Priority.STANDARD  # what all work counts as where first come is first served
OVERDUE_S = {Priority.INTERACTIVE: 0.0, Priority.STANDARD: 30.0, Priority.BATCH: 120.0}  # too long


@dataclass(frozen=True, slots=True)
class Head:
    """A queued task near the front of its group (one tenant's tasks of one lane)."""

    id: str
    tenant_id: str
    priority: Priority
    length_class: LengthClass
    tokens: int
    rank: float  # the moment, in seconds of any one clock
    age_s: float
    remaining_s: float = float("inf")  # to the deadline
    needs_s: float = 0.0  # from its start to its end, as far as is known
    prefix: int | None = None

    @property
    def late(self) -> bool:
        """Whether the deadline can't be met even if it started now."""
        return self.remaining_s <= self.needs_s


@dataclass(slots=True)
class Turns:
    """Places given to higher priorities since an overdue one last had its own; kept from plan to plan."""

    passed: dict[Priority, int] = field(default_factory=dict)


@dataclass(slots=True)
class Places:
    """How many more tasks of a tenant may go before it runs as many as it may; of others than these, any number."""

    left: dict[str, int] = field(default_factory=dict)

    def none_for(self, tenant_id: str) -> bool:
        """Say whether the tenant has no place left."""
        return self.left.get(tenant_id, 1) <= 0

    def take(self, tenant_id: str) -> None:
        """Note that a task goes."""
        if tenant_id in self.left:
            self.left[tenant_id] -= 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send, in order, and what to end as late."""

    picks: list[Head]
    late: list[Head]


def plan_fair(
    heads: Sequence[Head],
    fleet: Fleet,
    *,
    counters: Mapping[str, float],
    weights: Mapping[str, float],
    turns: Turns,
    places: Places | None = None,
) -> Plan:
    """Choose what goes next. `heads` come group by group, in the order in which each group wants to go."""
    places = places or Places()
    late = [head for head in heads if head.late]
    levels = {priority: _Level(priority, heads, counters, weights) for priority in Priority}
    picks: list[Head] = []
    while True:
        head = None
        for level in _in_turn(levels, turns):
            head = level.take(fleet, places)
            if head is not None:
                break
        if head is None:
            return Plan(picks, late)
        picks.append(head)
        places.take(head.tenant_id)
        for level in levels.values():  # a tenant's tokens count whichever priority they were spent on
            level.charge(head)
        _count(head.priority, levels, turns)


def plan_fifo(heads: Sequence[Head], fleet: Fleet, places: Places | None = None) -> Plan:
    """Choose what came first, whoever's and however long: what the fair order is measured against."""
    places = places or Places()
    late = [head for head in heads if head.late]
    picks: list[Head] = []
    for head in heads:
        if head.late or places.none_for(head.tenant_id):
            continue
        if fleet.take(Kind(FIFO, head.length_class)):
            places.take(head.tenant_id)
            picks.append(head)
    return Plan(picks, late)


def _in_turn(levels: Mapping[Priority, "_Level"], turns: Turns) -> list["_Level"]:
    """Levels in the order in which they are asked: an overdue one first when its turn has come."""
    due = [one for one in levels.values() if one.overdue and turns.passed.get(one.priority, 0) >= EVERY - 1]
    return [*due, *(level for level in levels.values() if level not in due)]


def _count(picked: Priority, levels: Mapping[Priority, "_Level"], turns: Turns) -> None:
    turns.passed[picked] = 0
    order = list(Priority)
    for lower in order[order.index(picked) + 1 :]:
        turns.passed[lower] = turns.passed.get(lower, 0) + 1 if levels[lower].overdue else 0


class _Level:
    """One priority's waiting tenants, by counter."""

    def __init__(
        self,
        priority: Priority,
        heads: Sequence[Head],
        counters: Mapping[str, float],
        weights: Mapping[str, float],
    ) -> None:
        self.priority = priority
        self._weights = weights
        self._groups: dict[str, dict[LengthClass, list[Head]]] = {}
        for head in reversed(heads):  # the last of a list is the next to go
            if head.priority is priority and not head.late:
                tenant = self._groups.setdefault(head.tenant_id, {})
                tenant.setdefault(head.length_class, []).append(head)
        self._counters = {tenant: counters.get(tenant, 0.0) for tenant in self._groups}
        limit_s = OVERDUE_S[priority]
        fronts = [group[-1] for tenant in self._groups.values() for group in tenant.values()]
        self.overdue = any(head.age_s > limit_s for head in fronts)  # when the plan began
        self._heap = [(self._counters[tenant], self._front(tenant), tenant) for tenant in self._groups]
        heapq.heapify(self._heap)

    def _front(self, tenant: str) -> float:
        return min((group[-1].rank for group in self._groups[tenant].values() if group), default=float("inf"))

    def take(self, fleet: Fleet, places: Places) -> Head | None:
        """Take the next task that its tenant has a place and a replica has room for, and that room."""
        put_back: list[tuple[float, float, str]] = []
        found = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            counter, _, tenant = entry
            if counter != self._counters[tenant]:  # charged since: it stands elsewhere now
                heapq.heappush(self._heap, (self._counters[tenant], self._front(tenant), tenant))
                continue
            found = None if places.none_for(tenant) else self._take_from(tenant, fleet)
            put_back.append(entry)
        for counter, _, tenant in put_back:
            if any(self._groups[tenant].values()):
                heapq.heappush(self._heap, (counter, self._front(tenant), tenant))
        return found

    def _take_from(self, tenant: str, fleet: Fleet) -> Head | None:
        groups = [group for group in self._groups[tenant].values() if group]
        for group in sorted(groups, key=lambda one: (one[-1].rank, one[-1].id)):
            if fleet.take(Kind(self.priority, group[-1].length_class)):
                return group.pop()
        return None

    def charge(self, head: Head) -> None:
        """Count what a pick will cost against its tenant."""
        if head.tenant_id in self._counters:
            weight = self._weights.get(head.tenant_id, 1.0)
            self._counters[head.tenant_id] += charge(head.tokens, weight)
