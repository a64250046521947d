"""From what a file says and what is there to the calls that make it so. Pure; nothing is asked or changed here."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from cli.plan_money import budget_steps, limit_steps, surplus_money, tariff_steps
from cli.plan_steps import Current, Step, changes_of
from schemas.platform import Platform, PlatformKey, PlatformTenant

_LIMITS = ("max_prompt_tokens", "max_output_tokens", "max_open_tasks", "priorities", "endpoints")


def plan(wanted: Platform, current: Current, *, prune: bool) -> list[Step]:
    """Return the steps, in an order in which they can be done; none where everything is as wanted.

    `prune`: take away what tenants in the file have and the file does not name. Prices are never taken away.
    """
    steps = [*_models(wanted, current), *tariff_steps(wanted, current)]
    for tenant in wanted.tenants:
        steps += _tenant(tenant, current)
        steps += _grants(tenant, current)
        steps += _keys(tenant, current)
        steps += limit_steps(tenant, current)
        steps += budget_steps(tenant, current)
        if prune:
            steps += surplus_money(tenant, current)
            steps += _surplus(tenant, current)
    return steps


def _models(wanted: Platform, current: Current) -> Iterator[Step]:
    for model in wanted.models:
        body = model.model_dump(mode="json", exclude={"name", "tariffs"})
        there = current.models.get(model.name)
        # without a context length in the file it is the model's own, which only the API knows
        compared = {name: value for name, value in body.items() if name != "max_model_len" or value}
        changes = changes_of(there, compared)
        if there is None or changes:
            path = f"/models/{quote(model.name)}"
            yield Step(
                "~" if there else "+", f"model {model.name}", "PUT", path, body, changes if there else {}
            )


def _tenant(tenant: PlatformTenant, current: Current) -> Iterator[Step]:
    beside = {"name", "grants", "keys", "limits", "budgets"}
    given = tenant.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=beside)
    there = current.tenants.get(tenant.name)
    if there is None:
        made = {name: value for name, value in given.items() if name != "disabled"}
        yield Step("+", f"tenant {tenant.name}", "POST", "/tenants", {"name": tenant.name, **made})
        if not given.get("disabled"):
            return
        there = {"disabled_at": None, **made}
    changes = changes_of({**there, "disabled": there["disabled_at"] is not None}, given)
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
        changes = changes_of(there, body)
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
            made = _new_key(tenant, key)
            yield Step("+", what, "POST", "/keys", made, makes_key=(tenant.name, key.name))
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
