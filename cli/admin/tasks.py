"""`headrace admin task`."""

from typing import Annotated

import typer

from cli.admin.connect import Object, connected, show
from core.states import TaskState

NAME = "task"
app = typer.Typer(help="Any tenant's tasks, without what they said and were told.", no_args_is_help=True)
_COLUMNS = ("id", "tenant_id", "lane", "status", "attempt", "reason", "created_at", "finished_at")


def _with_reason(task: Object) -> Object:
    return {**task, "reason": (task["error"] or {}).get("message")}


@app.command("list")
def list_(
    context: typer.Context,
    dead: Annotated[bool, typer.Option("--dead", help="Those that ran out of attempts.")] = False,
    tenant: str | None = None,
    model: str | None = None,
    status: Annotated[list[TaskState] | None, typer.Option(help="May be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 50,
) -> None:
    """List tasks, newest first."""
    with connected(context) as admin:
        found = admin.list(
            "/tasks", limit, dead=dead or None, tenant=tenant, model=model, status=status or None
        )
        show(context, map(_with_reason, found), _COLUMNS)


@app.command()
def retry(context: typer.Context, task_id: str) -> None:
    """Do a failed task again, for its tenant, as a new task."""
    with connected(context) as admin:
        show(context, [_with_reason(admin.call("POST", f"/tasks/{task_id}/retry"))], _COLUMNS)
