"""Virtual token counters: tenants share a model by the tokens spent on them, in proportion to their weights.

Each tenant of a model has a counter of the tokens (prompt and output) spent on it, divided by its weight; the
waiting tenant with the smallest goes next. What is in flight counts with what it was admitted with, until the
true figure is known. A tenant that comes back is lifted to the smallest active counter: time it did not ask
for service is no credit.

Source: Sheng et al., Fairness in Serving Large Language Models (VTC), OSDI 2024.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lift:
    """Counters to be raised, and the level that a newcomer is held against."""

    served: dict[str, float]
    floor: float


def lift(
    served: Mapping[str, float], active: Collection[str], newcomers: Collection[str], floor: float
) -> Lift:
    """Raise newcomers to the smallest counter of those that were active before them.

    With nobody active, the level at which the last ones left holds (`floor`), which never falls.
    """
    old = [served.get(tenant, 0.0) for tenant in active if tenant not in newcomers]
    floor = max(floor, min(old)) if old else floor
    return Lift({one: floor for one in newcomers if served.get(one, 0.0) < floor}, floor)


def charge(tokens: float, weight: float) -> float:
    """Return what tokens add to a counter."""
    return tokens / weight
