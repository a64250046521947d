"""`platform.yaml`: what `headrace apply` makes of a deployment. Everything in it is what /v1/admin takes."""

from collections import Counter
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from core.scopes import USUAL
from schemas.admin import GrantPut, KeyName, Lifetime, ModelName, ModelPut, Scopes, TenantChange, TenantName
from schemas.strict import Strict, clash


class PlatformModel(ModelPut):
    """A registered model."""

    name: ModelName


class PlatformGrant(GrantPut):
    """A tenant's grant: limits that are left out are none."""

    model: str


class PlatformKey(Strict):
    """A tenant's key, known by its name."""

    name: KeyName
    scopes: Scopes = USUAL
    expires_in_s: Lifetime | None = None  # of a key that is made; one that exists keeps its time


class PlatformTenant(TenantChange):
    """A tenant: settings that are left out stay, grants and keys that are left out too, unless they are pruned."""

    name: TenantName
    grants: Annotated[list[PlatformGrant], Field(default_factory=list)]
    keys: Annotated[list[PlatformKey], Field(default_factory=list)]

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        _require_unique("grants", (grant.model for grant in self.grants))
        _require_unique("keys", (key.name for key in self.keys))
        return self


class Platform(Strict):
    """The whole file."""

    models: Annotated[list[PlatformModel], Field(default_factory=list)]
    tenants: Annotated[list[PlatformTenant], Field(default_factory=list)]

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        _require_unique("models", (model.name for model in self.models))
        _require_unique("tenants", (tenant.name for tenant in self.tenants))
        return self


def _require_unique(field: str, names: Any) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise clash(field, f"must name {name!r} once")
