"""A worker whose one task does what its plan in Redis says and writes down what happened to it.

Run with one argument: JSON of `Options`.
"""

import asyncio
import contextvars
import dataclasses
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.asyncio
from celery import Celery, current_task
from celery.exceptions import SoftTimeLimitExceeded

from core.lanes import LengthClass
from core.slots import SlotRules
from storage.broker import TASK_NAME, declare, make_celery
from workers.bootsteps import install
from workers.pool import AsyncioPool, Hooks, cancel_reason, current_seat
from workers.seat import Cost

EVENTS = "probe:events"  # list of JSON [event, task id, detail, worker name]
PLANS = "probe:plans"  # hash: task id -> JSON plan
RELEASED = "probe:released"  # set of task ids that may end; "*" releases all

_label: contextvars.ContextVar[str] = contextvars.ContextVar("label", default="")


@dataclass
class Options:
    """How the worker runs."""

    name: str
    broker_url: str
    probe_url: str
    queues: list[str]
    concurrency: int = 2
    visibility_timeout_s: int = 60
    drain_s: float = 30.0
    reserved: int = 0  # slots for interactive lanes
    ceilings: dict[str, int] = field(default_factory=dict)  # by length class
    max_preemptions: int = 0
    conf: dict[str, Any] = field(default_factory=dict)
    transport: dict[str, Any] = field(default_factory=dict)
    without_step: str = ""  # a bootstep to leave out, to show what it is for
    fail_startup: bool = False
    hang_startup: bool = False


class Probe:
    """Writes events; reads plans."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.blocking = redis.Redis.from_url(options.probe_url)
        self.client: redis.asyncio.Redis | None = None
        self.pool: Any = None

    def note(self, event: str, task_id: str = "", detail: Any = None) -> None:
        self.blocking.rpush(EVENTS, json.dumps([event, task_id, detail, self.options.name]))

    async def anote(self, event: str, task_id: str = "", detail: Any = None) -> None:
        assert self.client is not None
        await self.client.rpush(EVENTS, json.dumps([event, task_id, detail, self.options.name]))

    async def startup(self) -> None:
        self.client = redis.asyncio.Redis.from_url(self.options.probe_url)
        if self.options.fail_startup:
            raise RuntimeError("the engine did not load")
        if self.options.hang_startup:
            await self.anote("starting")
            await asyncio.Event().wait()
        await self.anote("startup", detail=threading.current_thread().name)

    async def shutdown(self) -> None:
        await self.anote("shutdown")

    async def plan(self, task_id: str) -> dict[str, Any]:
        assert self.client is not None
        raw = await self.client.hget(PLANS, task_id)
        return json.loads(raw) if raw else {}

    async def released(self, task_id: str) -> None:
        # Not awaited itself: redis-py waits with asyncio.wait_for, which on Python 3.11 swallows a
        # cancellation that comes just as its answer does, and the task would hold on for ever.
        polling = asyncio.create_task(self._poll_release(task_id))
        released = asyncio.Event()
        polling.add_done_callback(lambda _: released.set())
        try:
            await released.wait()
        finally:
            polling.cancel()

    async def _poll_release(self, task_id: str) -> None:
        assert self.client is not None
        while not any(await self.client.smismember(RELEASED, [task_id, "*"])):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the release comes from another process


def define_task(app: Celery, probe: Probe) -> None:
    """Add `headrace.generate`."""

    @app.task(name=TASK_NAME)
    async def generate(task_id: str) -> str:
        plan = await probe.plan(task_id)
        _label.set(task_id)
        request = current_task.request
        here = {"os_pid": os.getpid(), "queue": request.shadow, "traceparent": request.get("traceparent")}
        await probe.anote("started", task_id, here)
        try:
            await perform(plan, task_id, probe)
        except asyncio.CancelledError:
            await probe.anote("cancelled", task_id, cancel_reason())
            if plan.get("swallow"):
                return "swallowed"
            raise
        except SoftTimeLimitExceeded:
            await probe.anote("soft", task_id)
            raise
        inner = await asyncio.create_task(look_around())
        seen = {"label": _label.get(), "request": current_task.request.id, "inner": inner}
        await probe.anote("finished", task_id, seen)
        return task_id


async def look_around() -> list[str]:
    """What a task started by the task sees."""
    return [_label.get(), current_task.request.id]


async def perform(plan: dict[str, Any], task_id: str, probe: Probe) -> None:
    """The plan's one verb."""
    match plan.get("do"):
        case "hold":
            await probe.released(task_id)
        case "hold the first time":
            assert probe.client is not None
            if await probe.client.sadd("probe:held once", task_id):
                await probe.released(task_id)
        case "hold and yield":
            await hold_and_yield(plan, task_id, probe)
        case "miss a cancellation":
            try:
                await probe.released(task_id)
            except asyncio.CancelledError:  # as asyncio.wait_for loses one
                await probe.anote("missed", task_id)
            await probe.released(task_id)
        case "sleep":
            await asyncio.sleep(plan["s"])
        case "pause consuming":
            probe.pool.pause_consuming()
            await probe.released(task_id)
            probe.pool.resume_consuming()
        case "fail":
            raise ValueError("planned")
        case "cancel itself":
            raise asyncio.CancelledError
        case "exit":
            raise SystemExit(3)


async def hold_and_yield(plan: dict[str, Any], task_id: str, probe: Probe) -> None:
    """Hold, offering the slot to whoever is more urgent, however often that is."""
    seat, preemptions = current_seat(), 0
    while True:
        taken = asyncio.Event()

        def cost() -> Cost:
            return Cost(plan.get("tokens", 100), 100, preemptions, 1e6, 0.01)  # noqa: B023

        seat.offer(cost, taken.set)
        waits = [asyncio.create_task(taken.wait()), asyncio.create_task(probe.released(task_id))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        seat.withdraw()
        if not taken.is_set():
            return
        preemptions += 1
        await probe.anote("yielded", task_id)
        await seat.regained()
        await probe.anote("regained", task_id)


def main(options: Options) -> int:
    """Run the worker to its end; its exit code."""
    app = make_celery(options.broker_url, visibility_timeout_s=options.visibility_timeout_s)
    app.conf.update(options.conf)
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, **options.transport}
    declare(app, options.queues)
    install(app, reserved=options.reserved > 0)
    app.steps["consumer"] = {step for step in app.steps["consumer"] if step.__name__ != options.without_step}
    probe = Probe(options)
    define_task(app, probe)

    def draining() -> None:
        probe.note("draining", detail=time.time())

    def rules(total: int) -> SlotRules:
        ceilings = {LengthClass(name): ceiling for name, ceiling in options.ceilings.items()}
        return SlotRules(total, options.reserved, ceilings, options.max_preemptions, rest_s=0.0)

    AsyncioPool.hooks = Hooks(
        startup=probe.startup,
        shutdown=probe.shutdown,
        draining=draining,
        drain_s=options.drain_s,
        rules=rules,
    )
    worker = app.Worker(
        pool="workers.pool:AsyncioPool",
        concurrency=options.concurrency,
        hostname=f"{options.name}@test",
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
        loglevel="INFO",
        ready_callback=lambda consumer: probe.note("ready"),
    )
    probe.pool = worker.pool
    worker.start()
    probe.note("exit", detail=worker.exitcode)
    return int(worker.exitcode or 0)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    known = {item.name for item in dataclasses.fields(Options)}
    sys.exit(main(Options(**{key: value for key, value in given.items() if key in known})))
