"""What plans are made of: what is there, and the steps that change it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
Named = tuple[str, str]  # a tenant's name, and that of a model or key of its own


@dataclass(frozen=True, slots=True)
class Current:
    """What is there: objects as /v1/admin shows them."""

    models: Mapping[str, Object] = field(default_factory=dict)  # by name
    tenants: Mapping[str, Object] = field(default_factory=dict)  # by name
    grants: Mapping[Named, Object] = field(default_factory=dict)
    keys: Mapping[Named, Object] = field(default_factory=dict)  # in force
    # that hold now, by model, version and priority; None: of all that have no price of their own
    tariffs: Mapping[tuple[str, str | None, str | None], Object] = field(default_factory=dict)
    # by tenant's name, key's and model; one of the last two is None, or both are
    limits: Mapping[tuple[str, str | None, str | None], Object] = field(default_factory=dict)
    # by tenant's name, key's and period
    budgets: Mapping[tuple[str, str | None, str], Object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of /v1/admin, and how to show it."""

    sign: str  # + makes, ~ changes, - takes away
    what: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # before and after, by field
    makes_key: Named | None = None  # the answer has its text
    of_key: Named | None = None  # whose id goes into the body: it may be made by a step before

    def __str__(self) -> str:
        told = "; ".join(f"{name}: {_plain(a)} → {_plain(b)}" for name, (a, b) in self.changes.items())
        return f"{self.sign} {self.what}" + (f" ({told})" if told else "")


def changes_of(there: Object | None, wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs, before and after, by field."""
    before = there or {}
    return {name: (before.get(name), value) for name, value in wanted.items() if before.get(name) != value}


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
