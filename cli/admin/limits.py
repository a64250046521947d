"""`headrace admin limit`."""

from typing import Annotated

import typer

from cli.admin.connect import connected, show

NAME = "limit"
app = typer.Typer(help="Requests and tokens a minute.", no_args_is_help=True)
_COLUMNS = (
    *("id", "tenant_id", "key_id", "model", "requests_per_minute", "tokens_per_minute"),
    *("burst_requests", "burst_tokens"),
)


@app.command("list")
def list_(context: typer.Context, tenant: str | None = None) -> None:
    """List limits, of one tenant or of all."""
    with connected(context) as admin:
        show(context, admin.list("/limits", tenant=tenant), _COLUMNS)


@app.command()
def put(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Id or name.")],
    key: Annotated[str | None, typer.Option(help="Of this key alone: id or first 15 characters.")] = None,
    model: Annotated[str | None, typer.Option(help="Of the tenant on this model alone.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="A minute.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="A minute, prompt and output.")] = None,
    burst_requests: Annotated[int | None, typer.Option(min=1, help="Default: a minute's worth.")] = None,
    burst_tokens: Annotated[int | None, typer.Option(min=1, help="Default: a minute's worth.")] = None,
) -> None:
    """Set the rates of a tenant, of a key, or of a tenant on a model, in place of former ones."""
    body = {
        "tenant": tenant,
        "key": key,
        "model": model,
        "requests_per_minute": requests,
        "tokens_per_minute": tokens,
        "burst_requests": burst_requests,
        "burst_tokens": burst_tokens,
    }
    with connected(context) as admin:
        show(context, [admin.call("PUT", "/limits", body)], _COLUMNS)


@app.command()
def delete(context: typer.Context, limit_id: str) -> None:
    """Take a limit away."""
    with connected(context) as admin:
        show(context, [admin.call("DELETE", f"/limits/{limit_id}")], ("id", "deleted"))
