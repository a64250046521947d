"""Of a plan what limits and costs: rates, prices and budgets. Pure, as `cli.plan`."""

from collections.abc import Iterator, Mapping
from typing import Any

from cli.plan_steps import Current, Object, Step, changes_of
from schemas.platform import Platform, PlatformTenant


def tariff_steps(wanted: Platform, current: Current) -> Iterator[Step]:
    """Set the prices that do not hold now. One that was set is never changed: another one begins."""
    for model in wanted.models:
        for prices in model.tariffs:
            there = current.tariffs.get((model.name, prices.version, prices.priority))
            changes = changes_of(there, prices.charged)
            if changes:
                what = _what("tariff", model.name, version=prices.version, priority=prices.priority)
                owner = {"model": model.name, "version": prices.version, "priority": prices.priority}
                body = {**owner, **prices.charged}
                yield Step("~" if there else "+", what, "POST", "/tariffs", body, changes)


def limit_steps(tenant: PlatformTenant, current: Current) -> Iterator[Step]:
    """Set the rates that differ."""
    for limit in tenant.limits:
        there = current.limits.get((tenant.name, limit.key, limit.model))
        rates = limit.model_dump(mode="json", exclude={"key", "model"})
        owner = {"model": limit.model} if limit.model is not None else {}
        what = _what("limit", tenant.name, key=limit.key, **owner)
        yield from _put("/limits", what, there, rates, tenant.name, limit.key, owner)


def budget_steps(tenant: PlatformTenant, current: Current) -> Iterator[Step]:
    """Set the budgets that differ."""
    for budget in tenant.budgets:
        there = current.budgets.get((tenant.name, budget.key, budget.period))
        terms = budget.model_dump(mode="json", exclude={"key", "period"})
        owner = {"period": budget.period.value}
        what = _what("budget", tenant.name, key=budget.key, **owner)
        yield from _put("/budgets", what, there, terms, tenant.name, budget.key, owner)


def surplus_money(tenant: PlatformTenant, current: Current) -> Iterator[Step]:
    """Take away the limits and budgets that a tenant has and the file does not name."""
    limits = {(limit.key, limit.model) for limit in tenant.limits}
    for (owner, key, model), there in current.limits.items():
        if owner == tenant.name and (key, model) not in limits:
            yield Step("-", _what("limit", owner, key=key, model=model), "DELETE", f"/limits/{there['id']}")
    budgets = {(budget.key, budget.period.value) for budget in tenant.budgets}
    for (owner, key, period), there in current.budgets.items():
        if owner == tenant.name and (key, period) not in budgets:
            what = _what("budget", owner, key=key, period=period)
            yield Step("-", what, "DELETE", f"/budgets/{there['id']}")


def _put(
    path: str,
    what: str,
    there: Object | None,
    terms: Mapping[str, Any],
    tenant: str,
    key: str | None,
    owner: Mapping[str, str],
) -> Iterator[Step]:
    changes = changes_of(there, terms)
    if changes:
        body = {"tenant": tenant, **owner, **terms}
        of_key = None if key is None else (tenant, key)
        yield Step("~" if there else "+", what, "PUT", path, body, changes, of_key=of_key)


def _what(kind: str, of: str, **owner: str | None) -> str:
    return " ".join([kind, of, *(f"{name}={value}" for name, value in owner.items() if value is not None)])
