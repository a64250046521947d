"""`headrace usage`: what the key's tenant used and what it cost, over HTTP."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from cli.target import LOCAL, Api, Data, Key, NoTargetError, find_target

Object = dict[str, Any]
_SUMS = ("tasks", "prompt_tokens", "cached_tokens", "output_tokens", "engine_us", "cost_usd_micros")


def columns_of(report: Object) -> list[str]:
    """Name a report's columns."""
    first = report["data"][0] if report["data"] else {}
    return [name for name in first if name not in report["total"]] + list(_SUMS)


def with_total(report: Object) -> Sequence[Object]:
    """A report's rows, and the sum of them all below."""
    first = next(iter(columns_of(report)), "tasks")
    label = {} if first in _SUMS else {first: "(total)"}
    return [*report["data"], report["total"] | label]


def usage(
    by: Annotated[str, typer.Option(help="Of day, model, version, key, priority, batch.")] = "day,model",
    start: Annotated[
        str | None, typer.Option(help="First day, as 2026-11-01 (UTC). Default: this month's.")
    ] = None,
    end: Annotated[str | None, typer.Option(help="The day after the last one. Default: tomorrow.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what the API answers.")] = False,
    api: Api = None,
    key: Key = None,
    data: Data = LOCAL,
) -> None:
    """Show what you used and what it cost, by day and model or otherwise."""
    import httpx

    parameters = {"group_by": by, "start": start, "end": end, "format": "csv" if csv else "json"}
    try:
        url, secret = find_target(api, key, data)
        answer = httpx.get(
            f"{url}/v1/usage",
            params={name: value for name, value in parameters.items() if value is not None},
            headers={"Authorization": f"Bearer {secret}"},
            timeout=30.0,
            trust_env=False,
        )
    except (NoTargetError, httpx.TransportError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    if not answer.is_success:
        message = answer.json().get("error", {}).get("message", "refused")
        print(f"headrace: {message} ({answer.status_code})", file=sys.stderr)
        raise typer.Exit(1)
    if csv or json:
        print(answer.text, end="" if csv else "\n")
        return
    from rich.console import Console
    from rich.table import Table

    report = answer.json()
    columns = columns_of(report)
    table = Table(*columns)
    for row in with_total(report):
        table.add_row(*("" if row.get(name) is None else str(row[name]) for name in columns))
    Console(width=None if sys.stdout.isatty() else 400).print(table)
