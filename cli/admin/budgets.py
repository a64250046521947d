"""`headrace admin budget`."""

from typing import Annotated

import typer

from cli.admin.connect import connected, show
from core.budgets import Period

NAME = "budget"
app = typer.Typer(help="What tenants and keys may spend.", no_args_is_help=True)
_COLUMNS = (
    *("id", "tenant_id", "key_id", "period", "soft_usd_micros", "hard_usd_micros"),
    *("spent_usd_micros", "held_usd_micros"),
)


@app.command("list")
def list_(context: typer.Context, tenant: str | None = None) -> None:
    """List budgets with what is spent, and held by open tasks, in the current period."""
    with connected(context) as admin:
        show(context, admin.list("/budgets", tenant=tenant), _COLUMNS)


@app.command()
def put(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Id or name.")],
    key: Annotated[str | None, typer.Option(help="Of this key alone: id or first 15 characters.")] = None,
    period: Annotated[Period, typer.Option(help="A calendar month (UTC), or ever.")] = Period.MONTH,
    soft: Annotated[
        float | None, typer.Option(min=0, help="USD; from it on answers and the webhook tell of it.")
    ] = None,
    hard: Annotated[float | None, typer.Option(min=0, help="USD; from it on nothing is accepted.")] = None,
    webhook: Annotated[str | None, typer.Option(help="URL that is told of the soft threshold.")] = None,
) -> None:
    """Set a budget, in place of the one for that period."""
    body = {
        "tenant": tenant,
        "key": key,
        "period": period,
        "soft_usd_micros": _micros(soft),
        "hard_usd_micros": _micros(hard),
        "webhook": webhook,
    }
    with connected(context) as admin:
        show(context, [admin.call("PUT", "/budgets", body)], _COLUMNS)


@app.command()
def delete(context: typer.Context, budget_id: str) -> None:
    """Take a budget away."""
    with connected(context) as admin:
        show(context, [admin.call("DELETE", f"/budgets/{budget_id}")], ("id", "deleted"))


def _micros(usd: float | None) -> int | None:
    return None if usd is None else round(usd * 1_000_000)
