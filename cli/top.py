"""`headrace top` and `headrace workers`: the platform as the admin API tells it, drawn in the terminal."""

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.admin.connect import Admin, AdminError, Where

Object = Mapping[str, Any]
_COLOURS = {"healthy": "green", "degraded": "yellow", "unhealthy": "red"}
_MINUTE_S = 60.0


def top(where: Where, *, once: bool, every_s: float) -> int:
    """Draw the platform again and again until Ctrl-C, or once; return the exit code."""
    try:
        admin = Admin(*where.find())
        try:
            if once or where.json:
                overview = admin.call("GET", "/overview")
                if where.json:
                    print(orjson.dumps(overview).decode())
                else:
                    _console().print(draw(overview))
                return 0
            _watch(admin, every_s)
        finally:
            admin.close()
    except AdminError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _watch(admin: Admin, every_s: float) -> None:
    with Live(console=_console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                seen: Group | Text = draw(admin.call("GET", "/overview"))
            except AdminError as error:  # an API that restarts comes back
                seen = Text(f"{error}", style="red")
            live.update(seen, refresh=True)
            time.sleep(every_s)


def workers(where: Where, *, events: int) -> int:
    """Print who serves what, how well, and the newest changes of health; return the exit code."""
    try:
        admin = Admin(*where.find())
        try:
            seen = admin.call("GET", "/workers")
        finally:
            admin.close()
    except AdminError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    if where.json:
        print(orjson.dumps(seen).decode())
        return 0
    console = _console()
    console.print(_workers(seen["data"]))
    if events and seen["events"]:
        table = Table("when", "worker", "health", "reasons", title="changes of health, newest first")
        for event in seen["events"][:events]:
            change = f"{event['before']} → {event['health']}"
            table.add_row(_when(event["created_at"]), event["worker"], change, _reasons(event))
        console.print(table)
    return 0


def draw(overview: Object) -> Group:
    """Draw one look."""
    tokens = sum(worker["output_tokens_per_s"] for worker in overview["workers"])
    window_s = overview["window_s"]
    cost = sum(one["cost_usd_micros"] for one in overview["recent"]) * _MINUTE_S / window_s / 1e6
    ended = sum(one["ended"] for one in overview["recent"]) * _MINUTE_S / window_s
    outbox = overview["outbox"]
    head = Text(
        f"{tokens:.0f} tokens/s · {ended:.0f} tasks/min · ${cost:.4f}/min · "
        f"outbox {outbox['tasks']} ({outbox['lag_s']:.1f} s)",
        style="bold",
    )
    return Group(
        head, _lanes(overview["lanes"]), _recent(overview["recent"], window_s), _workers(overview["workers"])
    )


def _lanes(lanes: Sequence[Object]) -> Table:
    table = Table("lane", "queued", "running", "longest wait, s")
    for lane in lanes:
        table.add_row(lane["lane"], str(lane["queued"]), str(lane["running"]), f"{lane['oldest_s']:.1f}")
    if not lanes:
        table.add_row("nothing waits or runs", "", "", "")
    return table


def _recent(recent: Sequence[Object], window_s: float) -> Table:
    table = Table(
        "priority", "ended", "failed", "TTFT p50, ms", "TTFT p99, ms", "total p50, ms", "tokens", "USD"
    )
    table.title = f"ended in the last {window_s:g} s"
    for one in recent:
        times = (_ms(one["ttft_p50_ms"]), _ms(one["ttft_p99_ms"]), _ms(one["total_p50_ms"]))
        cost = f"{one['cost_usd_micros'] / 1e6:.6f}"
        counts = (str(one["ended"]), str(one["failed"]))
        table.add_row(one["priority"], *counts, *times, str(one["output_tokens"]), cost)
    return table


def _workers(found: Sequence[Object]) -> Table:
    table = Table("worker", "model", "engine", "lanes", "state", "health", "running", "tokens/s", "reasons")
    for worker in found:
        health = Text(worker["health"], style=_COLOURS.get(worker["health"], ""))
        table.add_row(
            worker["id"],
            worker["model"],
            f"{worker['engine']} {worker['engine_version']}",
            ", ".join(worker["length_classes"]),
            worker["state"],
            health,
            f"{worker['running']} of {worker['max_num_seqs']}",
            f"{worker['output_tokens_per_s']:.1f}",
            _reasons(worker),
        )
    if not found:
        table.add_row("no worker is there", *[""] * 8)
    return table


def _reasons(of: Object) -> str:
    return "; ".join(f"{sign}: {words}" for sign, words in of["reasons"].items())


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _when(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _console() -> Console:
    # in a pipe no line is wrapped or cut
    return Console(width=None if sys.stdout.isatty() else 400)
