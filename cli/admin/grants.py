"""`headrace admin grant`."""

from typing import Annotated

import typer

from cli.admin.connect import connected, show
from core.lanes import Priority

NAME = "grant"
app = typer.Typer(help="Which tenant may use which model, and how much of it.", no_args_is_help=True)
_COLUMNS = (
    "tenant_id",
    "model",
    "max_prompt_tokens",
    "max_output_tokens",
    "max_open_tasks",
    "priorities",
    "endpoints",
)


@app.command("list")
def list_(context: typer.Context, tenant: str | None = None, model: str | None = None) -> None:
    """List grants, of one tenant or model or of all."""
    with connected(context) as admin:
        show(context, admin.list("/grants", tenant=tenant, model=model), _COLUMNS)


@app.command()
def put(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Id or name.")],
    model: str,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    max_output_tokens: Annotated[int | None, typer.Option(min=1, help="Of each choice.")] = None,
    max_open_tasks: Annotated[
        int | None, typer.Option(min=1, help="Queued and running at the same time.")
    ] = None,
    priority: Annotated[list[Priority] | None, typer.Option(help="May be repeated. Default: all.")] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="Such as /v1/chat/completions; may be repeated. Default: all.")
    ] = None,
) -> None:
    """Grant a model. Limits that are left out are none, whatever they were before."""
    body = {
        "max_prompt_tokens": max_prompt_tokens,
        "max_output_tokens": max_output_tokens,
        "max_open_tasks": max_open_tasks,
        "priorities": priority or None,
        "endpoints": endpoint or None,
    }
    with connected(context) as admin:
        show(context, [admin.call("PUT", f"/tenants/{tenant}/grants/{model}", body)], _COLUMNS)


@app.command()
def delete(context: typer.Context, tenant: str, model: str) -> None:
    """Take a model away; the tenant's tasks that wait for it end as forbidden."""
    with connected(context) as admin:
        show(context, [admin.call("DELETE", f"/tenants/{tenant}/grants/{model}")], ("id", "deleted"))
