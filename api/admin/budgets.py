"""/v1/admin/budgets: what tenants and keys may spend, and how much they did."""

from dataclasses import asdict
from typing import Any

from fastapi import Request

from api.admin.edge import Administrator, Paged, admin_router, page_object, read_body
from api.body import takes
from api.state import state_of
from core.targets import check_url
from core.times import seconds_of
from schemas.errors import RequestError
from schemas.money import BudgetPut
from services.manage_budgets import delete_budget, list_budgets, put_budget
from storage.budgets import StoredBudget

router = admin_router()


def _object(budget: StoredBudget) -> dict[str, Any]:
    return {**asdict(budget), "object": "budget", "created_at": seconds_of(budget.created_at)}


@router.get("/budgets")
async def list_(request: Request, page: Paged, tenant: str | None = None) -> dict[str, Any]:
    """List budgets, of one tenant or of all, with what is spent and held in the current period."""
    found, has_more = await list_budgets(state_of(request).database, page, tenant=tenant)
    data = [
        {
            **_object(budget),
            "spent_usd_micros": standing.spent_usd_micros,
            "held_usd_micros": standing.held_usd_micros,
        }
        for budget, standing in found
    ]
    return page_object(data, has_more)


@router.put("/budgets", openapi_extra=takes(BudgetPut))
async def put(request: Request, actor: Administrator) -> dict[str, Any]:
    """Set a budget of a tenant or key, in place of the one it has for that period. What was spent counts."""
    asked = await read_body(request, BudgetPut)
    state = state_of(request)
    if asked.webhook is not None:
        try:
            check_url(asked.webhook, private_allowed=state.settings.webhook_private)
        except ValueError as error:
            raise RequestError(400, f"Invalid webhook: it {error}.", "invalid_value", "webhook") from error
    terms = asked.model_dump(include={"soft_usd_micros", "hard_usd_micros", "webhook"})
    return _object(
        await put_budget(
            state.database, actor, tenant=asked.tenant, key=asked.key, period=asked.period, terms=terms
        )
    )


@router.delete("/budgets/{budget_id}")
async def delete(request: Request, actor: Administrator, budget_id: str) -> dict[str, Any]:
    """Take a budget away."""
    deleted = await delete_budget(state_of(request).database, actor, budget_id)
    return {"id": deleted.id, "object": "budget", "deleted": True}
