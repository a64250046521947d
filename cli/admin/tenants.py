"""`headrace admin tenant`."""

from typing import Annotated, Any

import typer

from cli.admin.connect import connected, show

NAME = "tenant"
app = typer.Typer(help="Tenants.", no_args_is_help=True)
_COLUMNS = (
    *("id", "name", "class", "disabled_at", "retention_s", "store", "weight"),
    *("max_queued_tasks", "max_queued_tokens", "max_running_tasks", "created_at"),
)
_HOURS = typer.Option(
    min=0.02, help="Hours for which prompts and outputs are kept. Default: the deployment's."
)
_CLASS = typer.Option("--class", help="What metrics show instead of the tenant; few of them.")
_STORE = typer.Option(
    "--store/--no-store", help="--no-store: prompts and outputs go once they are delivered."
)
_WEIGHT = typer.Option(min=0.01, max=1000, help="Its share of a model while more waits than can run.")
Tenant = Annotated[str, typer.Argument(help="Id or name.")]
QueuedTasks = Annotated[
    int | None, typer.Option("--max-queued-tasks", min=0, help="Of each model. 0: the deployment's bound.")
]
QueuedTokens = Annotated[
    int | None,
    typer.Option(
        "--max-queued-tokens", min=0, help="Likewise, in tokens of prompt and maximum output together."
    ),
]
RunningTasks = Annotated[
    int | None,
    typer.Option("--max-running-tasks", min=0, help="At once, over all models. 0: any number."),
]


@app.command("list")
def list_(context: typer.Context) -> None:
    """List tenants."""
    with connected(context) as admin:
        show(context, admin.list("/tenants"), _COLUMNS)


@app.command()
def create(
    context: typer.Context,
    name: str,
    tenant_class: Annotated[str, _CLASS] = "default",
    retention_hours: Annotated[float | None, _HOURS] = None,
    store: Annotated[bool, _STORE] = True,
    weight: Annotated[float, _WEIGHT] = 1.0,
    max_queued_tasks: QueuedTasks = None,
    max_queued_tokens: QueuedTokens = None,
    max_running_tasks: RunningTasks = None,
) -> None:
    """Make a tenant, which has no key and no model yet."""
    body = {
        "name": name,
        "class": tenant_class,
        "retention_s": _seconds(retention_hours),
        "store": store,
        "weight": weight,
        **_bounds(max_queued_tasks, max_queued_tokens, max_running_tasks),
    }
    with connected(context) as admin:
        show(context, [admin.call("POST", "/tenants", body)], _COLUMNS)


@app.command()
def change(
    context: typer.Context,
    tenant: Tenant,
    tenant_class: Annotated[str | None, _CLASS] = None,
    retention_hours: Annotated[float | None, _HOURS] = None,
    default_retention: Annotated[bool, typer.Option("--default-retention")] = False,
    store: Annotated[bool | None, _STORE] = None,
    weight: Annotated[float | None, _WEIGHT] = None,
    max_queued_tasks: QueuedTasks = None,
    max_queued_tokens: QueuedTokens = None,
    max_running_tasks: RunningTasks = None,
) -> None:
    """Change a tenant's class, its share, its bounds, or how long its prompts and outputs are kept."""
    body: dict[str, Any] = {} if tenant_class is None else {"class": tenant_class}
    if default_retention or retention_hours is not None:
        body["retention_s"] = None if default_retention else _seconds(retention_hours)
    if store is not None:
        body["store"] = store
    if weight is not None:
        body["weight"] = weight
    body |= _bounds(max_queued_tasks, max_queued_tokens, max_running_tasks)
    if not body:
        raise typer.BadParameter("nothing to change was given")
    with connected(context) as admin:
        show(context, [admin.call("PATCH", f"/tenants/{tenant}", body)], _COLUMNS)


@app.command()
def disable(context: typer.Context, tenant: Tenant) -> None:
    """Refuse all of a tenant's keys within a second; what it has queued ends as forbidden."""
    _set_disabled(context, tenant, True)


@app.command()
def enable(context: typer.Context, tenant: Tenant) -> None:
    """Let a disabled tenant in again."""
    _set_disabled(context, tenant, False)


def _set_disabled(context: typer.Context, tenant: str, disabled: bool) -> None:
    with connected(context) as admin:
        show(context, [admin.call("PATCH", f"/tenants/{tenant}", {"disabled": disabled})], _COLUMNS)


def _bounds(tasks: int | None, tokens: int | None, running: int | None) -> dict[str, int | None]:
    given = {"max_queued_tasks": tasks, "max_queued_tokens": tokens, "max_running_tasks": running}
    return {name: bound or None for name, bound in given.items() if bound is not None}


def _seconds(hours: float | None) -> float | None:
    return None if hours is None else hours * 3600
