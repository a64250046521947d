"""How long would a task wait? Told from what goes before it and from how fast its model is.

Under the fair order a tenant's task waits for the work of higher priorities, for its own tenant's, and for as much
of every other tenant's as the tenants' weights let pass meanwhile: a flood makes nobody wait but itself.

Units: tokens of prompt and maximum output together; `*_s` seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.lanes import Priority
from core.pace import Pace


@dataclass(frozen=True, slots=True)
class Ahead:
    """What goes before a task."""

    higher: float  # of higher priorities
    own: float  # of its tenant
    others: float  # of other tenants, as far as their share reaches

    @property
    def total(self) -> float:
        return self.higher + self.own + self.others


@dataclass(slots=True)
class ModelBacklog:
    """What waits for one model, by priority and tenant."""

    waiting: dict[Priority, dict[str, float]] = field(default_factory=dict)

    def add(self, priority: Priority, tenant_id: str, amount: float) -> None:
        """Count something more, or less."""
        of_priority = self.waiting.setdefault(priority, {})
        of_priority[tenant_id] = max(0.0, of_priority.get(tenant_id, 0.0) + amount)

    def of(self, priority: Priority, tenant_id: str) -> float:
        """Return what one tenant has waiting."""
        return self.waiting.get(priority, {}).get(tenant_id, 0.0)

    def ahead(
        self,
        priority: Priority,
        tenant_id: str,
        weights: Mapping[str, float],
        *,
        own: float | None = None,
        fifo: bool = False,
    ) -> Ahead:
        """Return what goes before a task that comes now. `own`: so much of its tenant's, where that is known."""
        higher = 0.0
        for other in Priority:
            if other is priority:
                break
            higher += sum(self.waiting.get(other, {}).values())
        same = self.waiting.get(priority, {})
        own = same.get(tenant_id, 0.0) if own is None else own
        weight = weights.get(tenant_id, 1.0)
        others = 0.0
        for other_tenant, amount in same.items():
            if other_tenant != tenant_id:
                share = own * weights.get(other_tenant, 1.0) / weight
                others += amount if fifo else min(amount, share)
        return Ahead(higher, own, others)


def own_turn_s(own_tasks: float, most: int | None, pace: Pace) -> float:
    """Return how long a tenant's bound on what it runs makes a task wait for its tenant's `own_tasks` before it.

    `most` None: it has no such bound.
    """
    return 0.0 if most is None or not pace.run_s else own_tasks / most * pace.run_s


def wait_s(ahead_tokens: float, pace: Pace) -> float | None:
    """Return the time until a slot is the task's; None while the model's rate is unknown."""
    if ahead_tokens <= 0:
        return 0.0
    if not pace.tokens_per_s:
        return None
    turn_s = pace.run_s / pace.slots if pace.run_s and pace.slots else 0.0  # until the next slot is free
    return ahead_tokens / pace.tokens_per_s + turn_s
