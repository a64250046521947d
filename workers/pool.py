"""AsyncioPool: celery tasks as coroutines on one event loop, in the process and on the loop of the engine.

Guarantees:
- at most `limit` tasks hold a slot at once, by the rules of `core.slots`, whatever the broker delivers;
- nothing is taken from the broker that would wait here, but for what a changed rule or a reconnect left;
- acks are sent while the pool drains, not after it;
- a revoke with terminate cancels the coroutine at once, before or after it started;
- on a drain the tasks still running after `drain_s` are cancelled and their messages put back to the heads
  of their queues before anything else is stopped; `cancel_reason()` tells the task why.

Threads: celery calls the pool on the hub's thread (the process's main one), tasks run on the loop's. Each
side reaches the other only through `call_soon_threadsafe` and the outbox, in order.

Units: `*_s` seconds, of `time.monotonic()`.
"""

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from celery.concurrency.base import BasePool
from celery.utils.log import get_logger

from core.lanes import Lane, LengthClass, Priority
from core.slots import Kind, SlotRules, Tally
from workers import celery_private
from workers.job import CancelReason, Job, TaskAbortedError, bridge_tasks, cancel_reason, current_seat, ident
from workers.slots import Slots

__all__ = ["AsyncioPool", "CancelReason", "Hooks", "TaskAbortedError", "cancel_reason", "current_seat"]

logger = get_logger(__name__)

CANCEL_GRACE_S = 3.0  # for cancelled tasks to clean up; with SHUTDOWN_S and a BRPOP's second under 10 s
SHUTDOWN_S = 5.0
TICK_S = 0.2  # how often the waiting main thread looks at timers and signals


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the worker has the pool do besides tasks; set on the class before the worker starts."""

    startup: Callable[[], Awaitable[None]] | None = None  # on the loop; nothing is consumed before it ends
    shutdown: Callable[[], Awaitable[None]] | None = None  # on the loop, after the drain or a failed startup
    draining: Callable[[], None] | None = None  # on the main thread, when the drain begins
    drain_s: float = 30.0  # running tasks may finish for this long
    rules: Callable[[int], SlotRules] = SlotRules  # for a number of slots; grow and shrink ask again


class AsyncioPool(BasePool):  # type: ignore[misc]
    """See the module. Select it with `worker_pool="workers.pool:AsyncioPool"`."""

    hooks: ClassVar[Hooks] = Hooks()

    signal_safe = False  # a drain inside a signal handler would wait for the very thread it interrupted
    is_green = False  # celery then consumes and takes remote control on its hub
    uses_semaphore = False
    body_can_be_buffer = True
    task_join_will_block = True

    limit: int  # set by celery: the concurrency
    consumer: Any = None  # of the current connection, by workers.bootsteps
    paused = False
    shunned: frozenset[Priority] = frozenset()  # of which no messages are taken; may be set on any thread
    slots: Slots  # of the loop's thread; made by `on_start`

    # -- main thread: start

    def on_start(self) -> None:
        """Start the loop and run the startup hook to its end.

        Raises: what the hook raises, CeleryChangedError, and celery's SystemExit on a signal meanwhile.
        """
        celery_private.verify()
        celery_private.key_stacks_by(self.app, ident)
        bridge_tasks(self.app)  # before celery builds its tracers
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._outbox: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._outbox_scheduled = False
        self._progress = threading.Event()
        self._hub: Any = None
        self._draining = self._stopping = False
        self._loop = _new_loop()
        self._delivered = Tally()  # handed to the loop ever
        self.slots = Slots(self._loop, self.hooks.rules(self.limit), self._post, self._forget)
        self._thread = threading.Thread(target=self._turn_loop, name="pool-loop", daemon=True)
        self._thread.start()
        try:
            self._start_up()
        except BaseException:
            self._shut_down()
            raise

    def _start_up(self) -> None:
        if self.hooks.startup is None:
            return
        future = self._submit(self.hooks.startup)
        try:
            while not wait([future], timeout=TICK_S).done:
                celery_private.raise_if_stopping()
        except BaseException:
            future.cancel()
            raise
        future.result()

    def register_with_event_loop(self, hub: Any) -> None:
        """Called on every connect: the hub lost what was scheduled on it when the last connection broke."""
        self._hub = hub
        self._outbox_scheduled = True
        hub.call_soon(self._send_outbox)

    # -- main thread: jobs

    def on_apply(
        self, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any
    ) -> Job:
        """Take a delivered message; the job it returns is celery's handle."""
        kind = _kind(celery_private.queue_of(args))
        job = Job(
            number=next(self._numbers),
            task_id=options["correlation_id"],
            target=target,
            args=args,
            kwargs=kwargs,
            on_accepted=options["accept_callback"],
            on_result=options["callback"],
            on_failure=options["error_callback"],
            on_timeout=options["timeout_callback"],
            soft_limit_s=options.get("soft_timeout"),
            hard_limit_s=options.get("timeout"),
            terminate_by=self.terminate_job,
            kind=kind,
        )
        self._jobs[job.number] = job
        self._delivered.add(kind)
        # What a BRPOP was sent for before its priority was shunned comes all the same: it goes back to the head
        take = self.slots.turn_away if kind.priority in self.shunned else self.slots.enqueue
        self._loop.call_soon_threadsafe(take, job)
        return job

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Cancel a task: for good when revoked, for another worker when celery's cold shutdown cancels all."""
        job = self._jobs.get(pid)
        reason: CancelReason = "drain" if celery_private.in_signal_handler() else "terminate"
        for copy in self._copies(job) if job is not None else ():
            self._loop.call_soon_threadsafe(self.slots.cancel, copy, reason)

    def may_consume(self, queue: str) -> bool:
        """Say whether a message of this queue would start at once. Asked on the hub's thread."""
        kind = _kind(queue)
        return kind.priority not in self.shunned and self.slots.may_consume(kind, self._delivered)

    def flush(self) -> None:
        """Connection lost: what waits for a slot is redelivered, so forget it. What runs goes on."""
        self._loop.call_soon_threadsafe(self.slots.forget_waiting)

    def grow(self, n: int = 1) -> None:
        """Run n more at once."""
        self._resize(self.limit + n)

    def shrink(self, n: int = 1) -> None:
        """Run n fewer at once, but one; running tasks go on."""
        self._resize(max(1, self.limit - n))

    def _resize(self, limit: int) -> None:
        rules = self.hooks.rules(limit)  # first: it refuses fewer slots than are reserved
        self.limit = limit
        self._loop.call_soon_threadsafe(self.slots.resize, rules)

    # -- any thread

    def pause_consuming(self) -> None:
        """Take no new messages until `resume_consuming`, over reconnects too; running tasks go on."""
        self.paused = True
        self._on_hub(self._apply_pause)

    def resume_consuming(self) -> None:
        """Take messages again."""
        self.paused = False
        self._on_hub(self._apply_pause)

    def apply_pause_after_connect(self) -> None:
        """Celery starts to consume on every connect: stop that before it asked for a message."""
        if self.paused:
            self._on_hub(self._apply_pause)

    def _on_hub(self, function: Callable[[], None]) -> None:
        if self._hub is not None:
            self._hub.call_soon(function)

    def _apply_pause(self) -> None:
        if self._draining:
            return
        for consumer in celery_private.task_consumers(self.consumer):
            consumer.cancel() if self.paused else consumer.consume()

    # -- loop thread

    def _turn_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            if not self._stopping:
                logger.critical("the pool's loop ended by itself; stopping the worker")
                celery_private.request_stop()
            self._progress.set()

    def _forget(self, job: Job) -> None:
        self._jobs.pop(job.number, None)
        for copy in self._copies(job):  # celery knows one request a task id and forgets it with the first
            self._post(celery_private.find_again, copy.on_accepted)
        self._progress.set()

    def _copies(self, job: Job) -> list[Job]:
        """Jobs of the same task: after a reconnect the broker redelivers what still runs."""
        return [copy for copy in list(self._jobs.values()) if copy.task_id == job.task_id]

    # -- to the hub's thread, in order: the hub's own ready set has none

    def _post(self, callback: Callable[..., Any], *args: Any) -> None:
        self._outbox.append((callback, args))
        if not self._outbox_scheduled and self._hub is not None:
            self._outbox_scheduled = True
            self._hub.call_soon(self._send_outbox)
        self._progress.set()

    def _send_outbox(self) -> None:
        self._outbox_scheduled = False
        while self._outbox:
            callback, args = self._outbox.popleft()
            try:
                callback(*args)
            except Exception:
                # The message may now be neither acked nor put back: only a restart frees its slot
                logger.critical("a callback of the pool failed; stopping the worker", exc_info=True)
                celery_private.request_stop()
        if self._hub is not None:
            celery_private.run_ready_acks(self._hub)  # else they wait for the next poll

    # -- main thread: stop

    def on_close(self) -> None:
        """Begin the drain: nothing that waits for a slot starts any more."""
        if self._draining:
            return
        self._draining = True
        logger.info("draining: %d tasks running", len(self._jobs))
        if self.hooks.draining is not None:
            try:
                self.hooks.draining()
            except Exception:
                logger.exception("the draining hook failed")
        self.flush()
        self._loop.call_soon_threadsafe(self.slots.drain_yielded)

    def on_stop(self) -> None:
        """Drain: let tasks finish, then cancel them, put their messages back, run the shutdown hook."""
        if celery_private.in_signal_handler() and celery_private.cold_shutdown_requested():
            return  # called by celery's handler of a cold shutdown: `on_terminate` or the drain it broke into acts
        self._drain(self.hooks.drain_s)

    def on_terminate(self) -> None:
        """As `on_stop` without the time to finish."""
        self._drain(0.0)

    def _drain(self, drain_s: float) -> None:
        if self._stopping:
            return
        self.on_close()
        deadline = time.monotonic() + drain_s
        while self._busy() and time.monotonic() < deadline and not celery_private.cold_shutdown_requested():
            self._pump()
        for job in list(self._jobs.values()):
            self._loop.call_soon_threadsafe(self.slots.cancel, job, "drain")
        deadline = time.monotonic() + CANCEL_GRACE_S
        while self._busy() and time.monotonic() < deadline:
            self._pump()
        if self._jobs:
            logger.error("%d tasks did not end when cancelled", len(self._jobs))
        self._put_back()
        self._shut_down()

    def _busy(self) -> bool:
        return bool(self._jobs or self._outbox) and self._thread.is_alive()

    def _pump(self) -> None:
        """Do the hub's part once: it turns no more, but acks and the held-tag heartbeat must go on."""
        self._progress.wait(TICK_S)
        self._progress.clear()
        self._send_outbox()
        if self._hub is not None:
            self._hub.fire_timers()

    def _put_back(self) -> None:
        if not (self.consumer and self.consumer.connection):
            return
        try:
            consumers = celery_private.task_consumers(self.consumer)
            count = sum(celery_private.restore_held(consumer.channel) for consumer in consumers)
            if count:
                logger.info("put %d messages back", count)
        except Exception:  # the broker is down: visibility timeout and reconciler are behind this
            logger.exception("could not put messages back")

    def _shut_down(self) -> None:
        if self._stopping:
            return
        if self.hooks.shutdown is not None and self._thread.is_alive():
            future = self._submit(self.hooks.shutdown)
            if not wait([future], timeout=SHUTDOWN_S).done:
                logger.error("the shutdown hook took over %.0f s", SHUTDOWN_S)
            elif (exc := future.exception()) is not None:
                logger.error("the shutdown hook failed", exc_info=exc)
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SHUTDOWN_S)

    def _submit(self, hook: Callable[[], Awaitable[None]]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(_call(hook), self._loop)

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        return {
            **info,
            "running": self.slots.running,
            "waiting": sum(map(len, self.slots.waiting.values())),
            "yielded": len(self.slots.yielded),
            "preemptions": self.slots.preemptions,
            "batch_size": self.slots.batch_size,
            "paused": self.paused,
        }


@cache
def _kind(queue: str) -> Kind:
    """What the rules look at; a queue that is no lane's counts as the commonest."""
    try:
        lane = Lane.parse(queue)
    except ValueError:
        return Kind(Priority.STANDARD, LengthClass.SHORT)
    return Kind(lane.priority, lane.length_class)


async def _call(hook: Callable[[], Awaitable[None]]) -> None:
    await hook()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
