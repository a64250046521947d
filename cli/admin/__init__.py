"""`headrace admin`: tenants, keys, grants, models, tasks and the audit log, over HTTP with an administrator's key."""

from pathlib import Path
from typing import Annotated

import typer

from cli.admin import audit, budgets, grants, keys, limits, models, tariffs, tasks, tenants, usage
from cli.admin.connect import Where

app = typer.Typer(help="Tenants, keys, grants, models, any tenant's tasks, audit log.", no_args_is_help=True)
for resource in (tenants, keys, grants, models, tasks, limits, tariffs, budgets):
    app.add_typer(resource.app, name=resource.NAME)
app.command("audit")(audit.list_)
app.command("usage")(usage.usage)
app.command("engine-time")(usage.engine_time)


@app.callback()
def where(
    context: typer.Context,
    api: Annotated[
        str | None,
        typer.Option(help="URL of the API. Default: the local stack's.", envvar="HEADRACE_API_URL"),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="Holds an administrator's key. Default: the local stack's.", envvar="HEADRACE_ADMIN_KEY_FILE"
        ),
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder of the local stack.")] = Path(".headrace"),
    json: Annotated[bool, typer.Option("--json", help="Print objects as JSON, one a line.")] = False,
) -> None:
    """Say where the API is, and as whom to ask."""
    context.obj = Where(api, key_file, data, json)
