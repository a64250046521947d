"""`headrace admin usage` and `headrace admin engine-time`."""

from typing import Annotated

import typer

from cli.admin.connect import connected, show
from cli.usage import columns_of, with_total

Start = Annotated[str | None, typer.Option(help="First day, as 2026-11-01 (UTC). Default: this month's.")]
End = Annotated[str | None, typer.Option(help="The day after the last one. Default: tomorrow.")]


def usage(
    context: typer.Context,
    by: Annotated[
        str, typer.Option(help="Of day, model, version, key, priority, batch, tenant.")
    ] = "tenant,model",
    tenant: Annotated[str | None, typer.Option(help="Of this one alone: id or name.")] = None,
    start: Start = None,
    end: End = None,
) -> None:
    """Show what tenants used and what it cost."""
    with connected(context) as admin:
        report = admin.call("GET", "/usage", group_by=by, tenant=tenant, start=start, end=end)
        show(context, with_total(report), columns_of(report))


def engine_time(context: typer.Context, start: Start = None, end: End = None) -> None:
    """Share the engines' time among tenants, and show what was idle or overhead."""
    with connected(context) as admin:
        found = admin.call("GET", "/engine-time", start=start, end=end)
        rows = [{"of": one["tenant_id"], "engine_us": one["engine_us"]} for one in found["tenants"]]
        rows += [
            {"of": f"({name})", "engine_us": found[f"{name}_us"]}
            for name in ("free", "open", "idle", "overhead")
        ]
        rows.append({"of": "(wall)", "engine_us": found["wall_us"]})
        wall = found["wall_us"] or 1
        for row in rows:
            row |= {"seconds": f"{row['engine_us'] / 1e6:.3f}", "share": f"{row['engine_us'] / wall:.1%}"}
        show(context, rows, ("of", "seconds", "share"))
