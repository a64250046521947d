"""`headrace queue`: lanes, backlog, waits and workers, live over the database."""

import asyncio
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from cli.interrupt import run_until_interrupted
from core.lanes import LengthClass, Priority
from core.pace import Pace
from core.waits import ModelBacklog, wait_s
from services.show_queue import QueueView, show_queue

_EVERY_S = 1.0


def queue(
    json: Annotated[bool, typer.Option("--json", help="Print JSON, once.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and end.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = _EVERY_S,
) -> None:
    """Show lanes, their backlog and wait, and the workers, until Ctrl-C."""
    from runtime.resources import open_database
    from runtime.settings import settings

    async def run() -> None:
        database = open_database(settings(), name="cli")
        try:
            if json:
                print(orjson.dumps(as_json(await show_queue(database)), option=orjson.OPT_INDENT_2).decode())
            elif once:
                Console().print(as_table(await show_queue(database)))
            else:
                await _watch(database, every)
        finally:
            await database.dispose()

    try:
        run_until_interrupted(run())
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _watch(database: AsyncEngine, every: float) -> None:
    with Live(as_table(await show_queue(database)), screen=False, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(every)
            live.update(as_table(await show_queue(database)), refresh=True)


def as_json(view: QueueView) -> dict[str, Any]:
    """The queue as data. `estimated_wait_s`: of a task of a tenant with as much queued as the largest has."""
    tokens, tenants = dict[Any, int](), dict[Any, set[str]]()
    by_model: dict[str, ModelBacklog] = {}
    for one in view.backlog:
        tokens[one.lane] = tokens.get(one.lane, 0) + one.tokens
        tenants.setdefault(one.lane, set()).add(one.tenant_id)
        of_model = by_model.setdefault(one.lane.model, ModelBacklog())
        of_model.add(one.lane.priority, one.tenant_id, one.tokens)
    order = [(priority, length_class) for priority in Priority for length_class in LengthClass]
    lanes = sorted(view.lanes, key=lambda lane: (lane.model, order.index((lane.priority, lane.length_class))))
    return {
        "lanes": [
            {
                "lane": lane.queue,
                "model": lane.model,
                "length_class": lane.length_class,
                "priority": lane.priority,
                "queued": view.lanes[lane].queued,
                "queued_tokens": tokens.get(lane, 0),
                "tenants": len(tenants.get(lane, ())),
                "running": view.lanes[lane].running,
                "oldest_s": round(view.lanes[lane].oldest_s, 1),
                "estimated_wait_s": _longest(
                    by_model.get(lane.model), lane.priority, view.paces.get(lane.model)
                ),
            }
            for lane in lanes
        ],
        "models": [
            {"model": model, "tokens_per_s": pace.tokens_per_s, "run_s": pace.run_s, "slots": pace.slots}
            for model, pace in sorted(view.paces.items())
        ],
        "workers": [
            {
                "worker": worker.name,
                "model": worker.model,
                "engine": worker.engine,
                "length_classes": worker.length_classes.split(","),
                "state": worker.state,
                "running": worker.running,
                "slots": worker.max_num_seqs,
                "reserved_slots": worker.reserved_slots,
            }
            for worker in view.workers
        ],
    }


def _longest(backlog: ModelBacklog | None, priority: Priority, pace: Pace | None) -> float | None:
    if backlog is None or not backlog.waiting.get(priority):
        return 0.0
    largest = max(backlog.waiting[priority], key=lambda tenant: backlog.waiting[priority][tenant])
    waits = wait_s(backlog.ahead(priority, largest, {}).total, pace or Pace())
    return None if waits is None else round(waits, 1)


def as_table(view: QueueView) -> Group:
    """The queue as tables."""
    data = as_json(view)
    lanes = Table(title="lanes")
    for name in ("lane", "queued", "tokens", "tenants", "running", "oldest", "wait"):
        lanes.add_column(name, justify="left" if name == "lane" else "right")
    for one in data["lanes"]:
        wait = one["estimated_wait_s"]
        lanes.add_row(
            one["lane"],
            *(str(one[name]) for name in ("queued", "queued_tokens", "tenants", "running")),
            f"{one['oldest_s']:.0f} s",
            "?" if wait is None else f"{wait:.0f} s",
        )
    workers = Table(title="workers")
    for name in ("worker", "model", "engine", "classes", "state", "running", "slots"):
        workers.add_column(name, justify="right" if name in ("running", "slots") else "left")
    for one in data["workers"]:
        workers.add_row(
            one["worker"],
            one["model"],
            one["engine"],
            ",".join(one["length_classes"]),
            one["state"],
            str(one["running"]),
            str(one["slots"]),
        )
    return Group(lanes, workers)
