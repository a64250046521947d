"""`headrace admin`: tenants, keys, grants, models, tasks and the audit log, over HTTP with an administrator's key."""

from typing import Annotated

import typer

from cli.admin import audit, budgets, grants, keys, limits, models, tariffs, tasks, tenants, usage
from cli.admin.connect import KeyFile, Where
from cli.target import LOCAL, Api, Data

app = typer.Typer(help="Tenants, keys, grants, models, any tenant's tasks, audit log.", no_args_is_help=True)
for resource in (tenants, keys, grants, models, tasks, limits, tariffs, budgets):
    app.add_typer(resource.app, name=resource.NAME)
app.command("audit")(audit.list_)
app.command("usage")(usage.usage)
app.command("engine-time")(usage.engine_time)


@app.callback()
def where(
    context: typer.Context,
    api: Api = None,
    key_file: KeyFile = None,
    data: Data = LOCAL,
    json: Annotated[bool, typer.Option("--json", help="Print objects as JSON, one a line.")] = False,
) -> None:
    """Say where the API is, and as whom to ask."""
    context.obj = Where(api, key_file, data, json)
