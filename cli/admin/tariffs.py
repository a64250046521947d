"""`headrace admin tariff`."""

from typing import Annotated

import typer

from cli.admin.connect import connected, show
from core.lanes import Priority

NAME = "tariff"
app = typer.Typer(help="Prices of models, and corrections of what was charged.", no_args_is_help=True)
_COLUMNS = (
    *("id", "model", "version", "priority", "prompt_usd_micros", "cached_usd_micros", "output_usd_micros"),
    *("engine_usd_micros", "valid_from", "valid_until"),
)


@app.command("list")
def list_(
    context: typer.Context,
    model: str | None = None,
    in_force: Annotated[bool, typer.Option("--in-force", help="Only those that hold now.")] = False,
) -> None:
    """List prices (micro-USD per million tokens, and per second of engine time), past and future ones too."""
    with connected(context) as admin:
        show(context, admin.list("/tariffs", model=model, in_force=in_force), _COLUMNS)


@app.command()
def create(
    context: typer.Context,
    model: str,
    prompt: Annotated[float, typer.Option(min=0, help="USD per million prompt tokens.")],
    output: Annotated[float, typer.Option(min=0, help="USD per million output tokens.")],
    cached: Annotated[
        float | None, typer.Option(min=0, help="USD per million cached prompt tokens. Default: prompt's.")
    ] = None,
    engine: Annotated[float, typer.Option(min=0, help="USD per second of engine time.")] = 0.0,
    priority: Annotated[
        Priority | None, typer.Option(help="For this one alone. Default: all without a price of their own.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Of the model, alone. Default: all without a price of their own.")
    ] = None,
    valid_from: Annotated[int | None, typer.Option(help="Seconds since the epoch. Default: now.")] = None,
    valid_until: Annotated[int | None, typer.Option(help="Seconds since the epoch. Default: open.")] = None,
) -> None:
    """Set a price for tasks accepted from then on."""
    body = {
        "model": model,
        "version": version,
        "priority": priority,
        "prompt_usd_micros": round(prompt * 1_000_000),
        "cached_usd_micros": None if cached is None else round(cached * 1_000_000),
        "output_usd_micros": round(output * 1_000_000),
        "engine_usd_micros": round(engine * 1_000_000),
        "valid_from": valid_from,
        "valid_until": valid_until,
    }
    with connected(context) as admin:
        show(context, [admin.call("POST", "/tariffs", body)], _COLUMNS)


@app.command()
def end(context: typer.Context, tariff_id: str) -> None:
    """End a price now: the one before it holds again."""
    with connected(context) as admin:
        show(context, [admin.call("POST", f"/tariffs/{tariff_id}/end")], _COLUMNS)


@app.command()
def correct(
    context: typer.Context,
    task_id: str,
    usd_micros: Annotated[int, typer.Option(help="Added to what it was charged; may be negative.")],
    reason: Annotated[str, typer.Option()],
) -> None:
    """Correct what a task was charged, by an entry beside its own."""
    body = {"task_id": task_id, "cost_usd_micros": usd_micros, "reason": reason}
    columns = ("id", "task_id", "cost_usd_micros", "reason")
    with connected(context) as admin:
        show(context, [admin.call("POST", "/ledger/corrections", body)], columns)
