"""One delivered message inside the pool, and the bridge that lets celery's tracer run an `async def` task.

The tracer is a plain function that calls `task.run`. It runs in a greenlet of the loop's thread; `task.run`
is replaced by a function that hands the coroutine out of that greenlet to the job's asyncio task, which
awaits it and gives the result or the exception back in. So celery's tracer, signals and logging work
unmodified, and context variables are one set for the tracer, the task and what the task starts.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Literal

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from greenlet import getcurrent, greenlet

from core.slots import Kind
from workers import celery_private
from workers.seat import NoSeat, Seat

CancelReason = Literal["drain", "terminate", "hard"]


class TaskAbortedError(Exception):
    """A task ended by a cancellation or an exit that the pool didn't ask for: its failure."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Job:
    """A message handed to the pool. Celery's request holds it weakly: the pool keeps the strong reference."""

    number: int  # given to celery as the pid of the process that runs it
    task_id: str
    target: Callable[..., Any]  # celery's tracer
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    on_accepted: Callable[[int, float], None]
    on_result: Callable[[tuple[int, Any, float]], None]
    on_failure: Callable[[Any], None]
    on_timeout: Callable[[bool, float], None]
    soft_limit_s: float | None
    hard_limit_s: float | None
    terminate_by: Callable[[int], None]
    kind: Kind  # of its lane
    seat: Seat = field(init=False)  # set when it starts
    task: asyncio.Task[Any] | None = None  # None while it waits for a slot
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    reason: CancelReason | None = None  # why the pool cancelled it; the first reason stays
    heard: bool = False  # it asked for the reason: it notices that it is cancelled
    yielding: bool = False  # it runs, and its slot is another's
    ended: bool = False
    soft_pending: bool = False  # the next cancellation stands for the soft time limit

    def terminate(self, signal: int | None = None) -> None:
        """Called by a revoke besides the pool's `terminate_job`, and for a request not yet accepted."""
        self.terminate_by(self.number)


_current: ContextVar[Job | None] = ContextVar("headrace_pool_job", default=None)


def cancel_reason() -> CancelReason | None:
    """Why the pool cancels the task that calls this; None when it doesn't.

    To be asked first of all while handling `asyncio.CancelledError`, in the task or in anything it started:
    who does not ask is cancelled again after a moment, because the first may have been swallowed on its way.

    - "drain": the worker stops; the message goes back to its queue, so hand the lease back.
    - "terminate": a revoke with terminate, such as Flower's button; the message is acked away already.
    - "hard": the hard time limit; the message is acked away already.

    The soft limit isn't a cancellation: it raises celery's `SoftTimeLimitExceeded` where the task awaits. A
    connection loss isn't one either: the task goes on. Once a task asked, it is not cancelled again.
    """
    job = _current.get()
    if job is None:
        return None
    job.heard = job.reason is not None
    return job.reason


def current_seat() -> Seat | NoSeat:
    """The slot of the task that calls this."""
    job = _current.get()
    return job.seat if job is not None else NoSeat()


def enter(job: Job) -> None:
    """Make the current context this job's."""
    _current.set(job)


def ident() -> Hashable:
    """Key of celery's task and request stacks: the job, in whatever it started, else the thread."""
    return _current.get() or celery_private.thread_ident()


def bridge_tasks(app: Celery) -> None:
    """Let the tracers that celery builds later run the application's coroutine functions."""
    for task in app.tasks.values():
        if iscoroutinefunction(task.run):
            task.run = _bridged(task.run)


async def run(job: Job) -> tuple[int, Any, float]:
    """Trace the job's task to its end; what celery's tracer returns."""
    here = getcurrent()
    tracer = _Tracer(job.target, here)
    tracer.gr_context = here.gr_context  # shared, not copied: the tracer's signals set variables for the task
    try:
        handed = tracer.switch(*job.args, **job.kwargs)
        while not tracer.dead:
            try:
                value = await _await_handed(handed, job)
            except BaseException as exc:  # noqa: BLE001 - the tracer decides about each of them
                handed = tracer.throw(_aborted(exc, job))
            else:
                handed = tracer.switch(value)
    except (SystemExit, KeyboardInterrupt) as exc:  # would end the loop and every other job with it
        raise TaskAbortedError(repr(exc)) from exc
    outcome: tuple[int, Any, float] = handed
    return outcome


class _Tracer(greenlet):  # type: ignore[misc]
    """The greenlet of one tracer; its parent is the loop."""


def _bridged(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    @wraps(function)
    def run_in_parent(*args: Any, **kwargs: Any) -> Any:
        coroutine = function(*args, **kwargs)
        here = getcurrent()
        return here.parent.switch(coroutine) if isinstance(here, _Tracer) else coroutine

    return run_in_parent


def _aborted(exc: BaseException, job: Job) -> BaseException:
    # Celery passes a CancelledError through as if its process died, and the message would stay held for ever
    if isinstance(exc, asyncio.CancelledError) and job.reason is None:
        aborted = TaskAbortedError("cancelled by something other than the pool")
        aborted.__cause__ = exc
        return aborted
    return exc


@types.coroutine
def _await_handed(coroutine: Coroutine[Any, Any, Any], job: Job) -> Generator[Any, Any, Any]:
    """Await the coroutine, raising the soft limit's exception in it in place of the cancellation for it."""
    resume: Callable[[Any], Any] = coroutine.send
    value: Any = None
    while True:
        try:
            waiter = resume(value)
        except StopIteration as stop:
            return stop.value
        try:
            value = yield waiter
            resume = coroutine.send
        except BaseException as exc:  # noqa: BLE001 - thrown on
            resume = coroutine.throw
            value = SoftTimeLimitExceeded() if _takes_soft_limit(exc, job) else exc


def _takes_soft_limit(exc: BaseException, job: Job) -> bool:
    if not (job.soft_pending and job.reason is None and isinstance(exc, asyncio.CancelledError)):
        return False
    job.soft_pending = False
    if job.task is not None:
        job.task.uncancel()
    return True
