"""Bodies of /v1/admin. As everywhere, unknown fields and wrong types are refused by name."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from core.scopes import USUAL, Scope
from schemas.strict import Strict, clash

YEAR_S = 366 * 24 * 3600.0
MONTH_S = 31 * 24 * 3600.0
# no `_`: ids have one, and a name must never be taken for one
TenantName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$")]
KeyName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}$")]
Retention = Annotated[float, Field(ge=60, le=10 * YEAR_S)]
# strict mode takes an enum's members only; from JSON they come as their values
Scopes = Annotated[frozenset[Annotated[Scope, Field(strict=False)]], Field(min_length=1, strict=False)]
Lifetime = Annotated[float, Field(gt=0, le=10 * YEAR_S)]


class TenantCreate(Strict):
    """Body of POST /v1/admin/tenants."""

    name: TenantName
    retention_s: Retention | None = (
        None  # of prompts and outputs, from the end of the task; null: the deployment's
    )
    store: bool = True  # false: prompts and outputs go once they are delivered


class TenantChange(Strict):
    """Body of PATCH /v1/admin/tenants/{tenant}: what is left out stays."""

    disabled: bool = False
    retention_s: Retention | None = None
    store: bool = True


class KeyCreate(Strict):
    """Body of POST /v1/admin/keys."""

    tenant: str
    name: KeyName
    scopes: Scopes = USUAL
    expires_in_s: Lifetime | None = None  # null: never


class KeyChange(Strict):
    """Body of PATCH /v1/admin/keys/{key}: what is left out stays."""

    name: KeyName = ""
    scopes: Scopes = USUAL
    expires_in_s: Lifetime | None = None  # null: never

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise clash("name", "or scopes or expires_in_s is needed")
        return self


class KeyRotate(Strict):
    """Body of POST /v1/admin/keys/{key}/rotate."""

    overlap_s: Annotated[float, Field(ge=0, le=MONTH_S)] = 24 * 3600.0  # for which the old key opens too
