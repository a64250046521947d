"""From what a file says and what is there to the calls that make it so. Pure; nothing is asked or changed here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from schemas.platform import Platform, PlatformKey, PlatformTenant

Object = Mapping[str, Any]
_LIMITS = ("max_prompt_tokens", "max_output_tokens", "max_open_tasks", "priorities", "endpoints")


@dataclass(frozen=True, slots=True)
class Current:
    """What is there: objects as /v1/admin shows them."""

    models: Mapping[str, Object]  # by name
    tenants: Mapping[str, Object]  # by name
    grants: Mapping[tuple[str, str], Object]  # by tenant's name and model
    keys: Mapping[tuple[str, str], Object]  # in force, by tenant's name and key's


@dataclass(frozen=True, slots=True)
class Step:
    """One call of /v1/admin, and how to show it."""

    sign: str  # + makes, ~ changes, - takes away
    what: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # before and after, by field
    makes_key: str | None = None  # the name of the file that the answer's key goes to

    def __str__(self) -> str:
        told = "; ".join(f"{name}: {_plain(a)} → {_plain(b)}" for name, (a, b) in self.changes.items())
        return f"{self.sign} {self.what}" + (f" ({told})" if told else "")


def plan(wanted: Platform, current: Current, *, prune: bool) -> list[Step]:
    """Return the steps, in an order in which they can be done; none where everything is as wanted.

    `prune`: take away grants and keys that tenants in the file have and the file does not name.
    """
    steps = [*_models(wanted, current)]
    for tenant in wanted.tenants:
        steps += _tenant(tenant, current)
        steps += _grants(tenant, current)
        steps += _keys(tenant, current)
        if prune:
            steps += _surplus(tenant, current)
    return steps


def _models(wanted: Platform, current: Current) -> Iterator[Step]:
    for model in wanted.models:
        body = model.model_dump(mode="json", exclude={"name"})
        there = current.models.get(model.name)
        # without a context length in the file it is the model's own, which only the API knows
        compared = {name: value for name, value in body.items() if name != "max_model_len" or value}
        changes = _changes(there, compared)
        if there is None or changes:
            path = f"/models/{quote(model.name)}"
            yield Step(
                "~" if there else "+", f"model {model.name}", "PUT", path, body, changes if there else {}
            )


def _tenant(tenant: PlatformTenant, current: Current) -> Iterator[Step]:
    given = tenant.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude={"name", "grants", "keys"}
    )
    there = current.tenants.get(tenant.name)
    if there is None:
        made = {name: value for name, value in given.items() if name != "disabled"}
        yield Step("+", f"tenant {tenant.name}", "POST", "/tenants", {"name": tenant.name, **made})
        if not given.get("disabled"):
            return
        there = {"disabled_at": None, **made}
    changes = _changes({**there, "disabled": there["disabled_at"] is not None}, given)
    if changes:
        body = {name: given[name] for name in changes}
        yield Step("~", f"tenant {tenant.name}", "PATCH", f"/tenants/{tenant.name}", body, changes)


def _grants(tenant: PlatformTenant, current: Current) -> Iterator[Step]:
    for grant in tenant.grants:
        limits = grant.limits
        body = {
            name: list(value) if isinstance(value := getattr(limits, name), tuple) else value
            for name in _LIMITS
        }
        there = current.grants.get((tenant.name, grant.model))
        changes = _changes(there, body)
        if there is None or changes:
            path = f"/tenants/{tenant.name}/grants/{quote(grant.model)}"
            shown = changes if there else {name: (None, value) for name, value in body.items() if value}
            sign = "~" if there else "+"
            yield Step(sign, f"grant {tenant.name}/{grant.model}", "PUT", path, body, shown)


def _keys(tenant: PlatformTenant, current: Current) -> Iterator[Step]:
    for key in tenant.keys:
        there = current.keys.get((tenant.name, key.name))
        what = f"key {tenant.name}/{key.name}"
        if there is None:
            yield Step(
                "+", what, "POST", "/keys", _new_key(tenant, key), makes_key=f"{tenant.name}.{key.name}"
            )
        elif set(there["scopes"]) != set(key.scopes):
            scopes = sorted(key.scopes)
            changes = {"scopes": (sorted(there["scopes"]), scopes)}
            yield Step("~", what, "PATCH", f"/keys/{there['id']}", {"scopes": scopes}, changes)


def _new_key(tenant: PlatformTenant, key: PlatformKey) -> dict[str, Any]:
    body: dict[str, Any] = {"tenant": tenant.name, "name": key.name, "scopes": sorted(key.scopes)}
    return body if key.expires_in_s is None else {**body, "expires_in_s": key.expires_in_s}


def _surplus(tenant: PlatformTenant, current: Current) -> Iterator[Step]:
    granted, named = {grant.model for grant in tenant.grants}, {key.name for key in tenant.keys}
    for owner, model in current.grants:
        if owner == tenant.name and model not in granted:
            path = f"/tenants/{tenant.name}/grants/{quote(model)}"
            yield Step("-", f"grant {tenant.name}/{model}", "DELETE", path)
    for (owner, name), there in current.keys.items():
        if owner == tenant.name and name not in named:
            yield Step("-", f"key {tenant.name}/{name}", "POST", f"/keys/{there['id']}/revoke")


def _changes(there: Object | None, wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    before = there or {}
    return {name: (before.get(name), value) for name, value in wanted.items() if before.get(name) != value}


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
