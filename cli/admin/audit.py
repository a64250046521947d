"""`headrace admin audit`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli.admin.connect import Object, connected, show

_COLUMNS = ("created_at", "actor", "action", "object_id", "changes")


def list_(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Changes that concern this tenant.")] = None,
    object_id: Annotated[str | None, typer.Option(help="Changes of this object.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 50,
) -> None:
    """Show who changed what, newest first."""
    with connected(context) as admin:
        found = admin.list("/audit", limit, tenant=tenant, object_id=object_id)
        show(context, map(_with_changes, found), _COLUMNS)


def _with_changes(entry: Object) -> Object:
    before, after = _flat(entry["before"]), _flat(entry["after"])
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    told = [f"{name}: {before.get(name)} → {after.get(name)}" for name in changed]
    return {**entry, "changes": "; ".join(told) if before and after else ""}


def _flat(value: Mapping[str, Any] | None) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, one in (value or {}).items():
        flat.update(one if isinstance(one, dict) else {name: one})
    return flat
