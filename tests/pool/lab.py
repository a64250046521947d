"""A lab: publish to a real Valkey, run workers as processes, read what their tasks wrote down."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import kombu.pools

from cli.stack.process import Program, spawn
from cli.stack.valkey import ValkeyServer
from storage.broker import Publisher, Wakeup, make_celery
from tests.pool.worker_process import EVENTS, PLANS, RELEASED, Options

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
QUEUE = "demo.short.standard"
UNACKED = "hr:q:unacked"


def wait_until(what: str, look: Callable[[], T], timeout_s: float = 10.0) -> T:
    """The first true value of `look`. Raises: AssertionError naming what did not come."""
    deadline = time.monotonic() + timeout_s
    while not (value := look()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)
    return value


class Worker:
    """A worker process."""

    def __init__(self, options: Options, log: Path) -> None:
        self.options = options
        self.log = log
        argv = [sys.executable, "-m", "tests.pool.worker_process", json.dumps(dataclasses.asdict(options))]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process: subprocess.Popen[bytes] = spawn(Program(options.name, argv, log, ROOT, env))

    def send(self, number: signal.Signals) -> None:
        """Signal the process."""
        self.process.send_signal(number)

    def exit_code(self, timeout_s: float = 15.0) -> int:
        """Wait for its end."""
        return self.process.wait(timeout_s)


class Lab:
    """What the tests do to the broker and the workers."""

    def __init__(self, server: ValkeyServer, probe_server: ValkeyServer, folder: Path) -> None:
        self.server = server
        self.probe_server = probe_server
        self.folder = folder
        self.app = make_celery(server.url_of(0))
        self.publisher = Publisher(self.app)
        self.broker = server.client(0)
        self.probe = probe_server.client()
        self.probe.flushall()
        self.workers: list[Worker] = []

    def start_worker(self, *, ready: bool = True, **options: Any) -> Worker:
        """Start a worker, and wait until it consumes."""
        name = f"w{len(self.workers) + 1}"
        full = Options(
            name=name,
            broker_url=self.server.url_of(0),
            probe_url=self.probe_server.url,
            queues=options.pop("queues", [QUEUE]),
            **options,
        )
        worker = Worker(full, self.folder / f"{name}.log")
        self.workers.append(worker)
        if ready:
            self.wait_event("ready", worker=name, timeout_s=20)
        return worker

    def publish(self, plan: dict[str, Any] | None = None, *, queue: str = QUEUE, task_id: str = "") -> str:
        """Publish one task that does what the plan says; returns its id."""
        task_id = task_id or f"task-{uuid.uuid4().hex[:8]}"
        if plan:
            self.probe.hset(PLANS, task_id, json.dumps(plan))
        self.publisher.publish(Wakeup(queue, task_id))
        return task_id

    def release(self, task_id: str = "*") -> None:
        """Let a held task end."""
        self.probe.sadd(RELEASED, task_id)

    def events(self, kind: str, task_id: str | None = None, worker: str | None = None) -> list[list[Any]]:
        """Everything of a kind that happened so far: [kind, task id, detail, worker]."""
        rows = [json.loads(raw) for raw in self.probe.lrange(EVENTS, 0, -1)]
        return [
            row for row in rows if row[0] == kind and task_id in (None, row[1]) and worker in (None, row[3])
        ]

    def wait_event(
        self, kind: str, task_id: str | None = None, worker: str | None = None, timeout_s: float = 10.0
    ) -> list[Any]:
        """The first event of a kind."""
        return wait_until(
            f"event {kind} {task_id or ''}", lambda: self.events(kind, task_id, worker), timeout_s
        )[0]

    def unacked(self) -> int:
        """Messages that some worker holds."""
        return int(self.broker.hlen(UNACKED))

    def queued(self, queue: str = QUEUE) -> int:
        """Messages in a queue."""
        return int(self.broker.llen(f"hr:q:{queue}"))

    def wait_unacked(self, count: int, timeout_s: float = 10.0) -> None:
        """Wait until exactly so many messages are held."""
        wait_until(f"{count} unacked, not {self.unacked()}", lambda: self.unacked() == count, timeout_s)

    def wait_no_brpop(self) -> None:
        """Wait until no worker waits for messages at the broker."""
        wait_until("no BRPOP in flight", lambda: self.broker.info("clients")["blocked_clients"] == 0)

    def wait_brpop(self) -> None:
        """Wait until a worker waits for messages at the broker."""
        wait_until("a BRPOP in flight", lambda: self.broker.info("clients")["blocked_clients"] > 0)

    def cut_connections(self) -> None:
        """Have the broker drop every client but this lab's."""
        self.forget_connections()
        self.broker.client_kill_filter(_type="normal", skipme=True)
        self.broker.client_kill_filter(_type="pubsub", skipme=True)

    def forget_connections(self) -> None:
        """Close this process's connections to the broker: remote control and the publisher open new ones."""
        self.publisher.close()
        kombu.pools.reset()

    def pool_info(self, worker: Worker) -> dict[str, Any]:
        """What the pool says of itself through remote control; {} when the worker doesn't answer."""
        name = f"{worker.options.name}@test"
        replies = self.app.control.inspect([name], timeout=1.0).stats() or {}
        info: dict[str, Any] = replies.get(name, {}).get("pool", {})
        return info

    def close(self) -> None:
        """End the workers this lab started."""
        self.forget_connections()
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait(10)
