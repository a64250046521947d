"""`platform.yaml`: what `headrace apply` makes of a deployment. Everything in it is what /v1/admin takes."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import Field, model_validator

from core.scopes import USUAL
from schemas.admin import GrantPut, KeyName, Lifetime, ModelName, ModelPut, Scopes, TenantChange, TenantName
from schemas.money import BudgetTerms, LimitTerms, Prices
from schemas.strict import Strict, clash


class PlatformModel(ModelPut):
    """A registered model, and the prices that are to hold from now on: those that are left out stay."""

    name: ModelName
    tariffs: Annotated[list[Prices], Field(default_factory=list)]

    @model_validator(mode="after")
    def _priced_once(self) -> Self:
        _require_unique(
            "tariffs",
            ((one.version or "any version", one.priority or "any priority") for one in self.tariffs),
        )
        return self


class PlatformGrant(GrantPut):
    """A tenant's grant: limits that are left out are none."""

    model: str


class PlatformKey(Strict):
    """A tenant's key, known by its name."""

    name: KeyName
    scopes: Scopes = USUAL
    expires_in_s: Lifetime | None = None  # of a key that is made; one that exists keeps its time


class PlatformLimit(LimitTerms):
    """Rates of the tenant, or of one of its keys here, by name, or of it on one model."""

    key: KeyName | None = None


class PlatformBudget(BudgetTerms):
    """A budget of the tenant, or of one of its keys here, by name."""

    key: KeyName | None = None


class PlatformTenant(TenantChange):
    """A tenant: settings that are left out stay; so does what it has beside them, unless that is pruned."""

    name: TenantName
    grants: Annotated[list[PlatformGrant], Field(default_factory=list)]
    keys: Annotated[list[PlatformKey], Field(default_factory=list)]
    limits: Annotated[list[PlatformLimit], Field(default_factory=list)]
    budgets: Annotated[list[PlatformBudget], Field(default_factory=list)]

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        _require_unique("grants", ((grant.model,) for grant in self.grants))
        _require_unique("keys", ((key.name,) for key in self.keys))
        _require_unique("limits", (_owner(one.key, one.model) for one in self.limits))
        _require_unique("budgets", ((*_owner(one.key), one.period) for one in self.budgets))
        named = {key.name for key in self.keys}
        for field, keys in (("limits", self.limits), ("budgets", self.budgets)):
            for one in keys:
                if one.key is not None and one.key not in named:
                    raise clash(field, f"must name a key of the tenant's `keys` here, unlike {one.key!r}")
        return self


class Platform(Strict):
    """The whole file."""

    models: Annotated[list[PlatformModel], Field(default_factory=list)]
    tenants: Annotated[list[PlatformTenant], Field(default_factory=list)]

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        _require_unique("models", ((model.name,) for model in self.models))
        _require_unique("tenants", ((tenant.name,) for tenant in self.tenants))
        return self


def _owner(key: str | None, model: str | None = None) -> tuple[str, ...]:
    if key is not None:
        return ("key", key)
    return ("tenant",) if model is None else ("model", model)


def _require_unique(field: str, names: Iterable[tuple[str, ...]]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise clash(field, f"must name {'/'.join(name)!r} once")
