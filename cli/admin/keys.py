"""`headrace admin key`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.admin.connect import AdminError, Object, connected, show
from cli.private_file import can_write, write_private
from core.keys import PREFIX, lookup_of
from core.scopes import USUAL, Scope

NAME = "key"
app = typer.Typer(help="API keys of tenants.", no_args_is_help=True)
_COLUMNS = (
    "id",
    "prefix",
    "tenant_id",
    "name",
    "scopes",
    "expires_at",
    "revoked_at",
    "last_used_at",
    "replaced_by",
)
Key = Annotated[str, typer.Argument(help="Id or first 15 characters; of a whole key no more is sent.")]
_OUT = typer.Option(help="Write the key to this file, readable by its owner only, and do not print it.")
_DAYS = typer.Option(min=0.0001, help="Days until it ends. Default: never.")


@app.command("list")
def list_(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Revoked and expired ones too.")] = False,
) -> None:
    """List keys in force."""
    with connected(context) as admin:
        show(context, admin.list("/keys", tenant=tenant, in_force=not ended), _COLUMNS)


@app.command()
def create(
    context: typer.Context,
    tenant: Annotated[str, typer.Option(help="Whose it is.")],
    name: Annotated[str, typer.Option(help="What it is for.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="May be repeated. Default: submit and read.")
    ] = None,
    expires_days: Annotated[float | None, _DAYS] = None,
    out: Annotated[Path | None, _OUT] = None,
) -> None:
    """Make a key. It can be seen this once."""
    body: dict[str, Any] = {"tenant": tenant, "name": name, "scopes": sorted(scope or USUAL)}
    if expires_days is not None:
        body["expires_in_s"] = expires_days * 86400
    with connected(context) as admin, _place(out) as tell:
        tell(admin.call("POST", "/keys", body))


@app.command()
def rotate(
    context: typer.Context,
    key: Key,
    overlap_hours: Annotated[float, typer.Option(min=0, max=744, help="For which both keys open.")] = 24.0,
    out: Annotated[Path | None, _OUT] = None,
) -> None:
    """Make a key in place of another, which ends after the overlap. It can be seen this once."""
    with connected(context) as admin, _place(out) as tell:
        tell(admin.call("POST", f"/keys/{_short(key)}/rotate", {"overlap_s": overlap_hours * 3600}))


@app.command()
def revoke(context: typer.Context, key: Key) -> None:
    """Refuse a key on every API process within a second."""
    with connected(context) as admin:
        show(context, [admin.call("POST", f"/keys/{_short(key)}/revoke")], _COLUMNS)


def _short(key: str) -> str:
    return lookup_of(key) if key.startswith(PREFIX) else key


@contextmanager
def _place(out: Path | None) -> Iterator[Callable[[Object], None]]:
    """Where a new key goes: made sure of before the key is made, since it can't be seen again.

    Raises: AdminError.
    """
    if out is not None:
        try:
            can_write(out)
        except OSError as error:
            raise AdminError(f"the key could not be kept: {error}") from error

    def tell(made: Object) -> None:
        if out is None:
            print(made["key"])
        else:
            write_private(out, made["key"] + "\n")
            print(f"{made['id']} ({made['prefix']}…) written to {out}")

    yield tell
