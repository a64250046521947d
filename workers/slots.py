"""The loop's side of the pool: which jobs hold a slot, which wait for one, and how each of them ends.

A running job may offer its slot (`Seat.offer`): when a person waits and none is free, the one that loses least
is told to yield, its slot is used at once, and it goes on in the next slot that its kind may have. What may
start and who yields is decided in `core.slots`.

Everything here but the constructor and `may_consume` runs on the loop's thread. What celery has to hear goes
through `post`.
"""

import asyncio
import contextvars
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated
from celery.exceptions import Reject

from core.lanes import Priority
from core.slots import Kind, SlotRules, Tally, choose_victim, makes_room, may_start
from workers.job import CancelReason, Job, TaskAbortedError, enter, run
from workers.seat import Seat

AGAIN_S = 0.5  # between two cancellations of a job that has not noticed, and two looks for a victim


class Slots:
    """The slots of one pool and a line. Each job taken by `enqueue` ends in exactly one call of `forget`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rules: SlotRules,
        post: Callable[..., None],
        forget: Callable[[Job], None],
    ) -> None:
        self.rules = rules
        self.batch_size: int | None = None  # how many batch jobs may hold a slot; None: all shared slots
        self.waiting: dict[Priority, deque[Job]] = {priority: deque() for priority in Priority}
        self.yielded: deque[Job] = deque()  # told to give their slot away, first to get one again
        self.preemptions = 0  # ever
        self._held = Tally()
        self._arrived = Tally()  # enqueued ever
        self._seats: dict[Job, Seat] = {}  # of those that offer their slot
        self._loop = loop
        self._post = post
        self._forget = forget
        self._looking: asyncio.TimerHandle | None = None

    # -- asked by the hub's thread: it sees each count as it was a moment ago, and is asked again after a change

    def may_consume(self, kind: Kind, delivered: Tally) -> bool:
        """Say whether a message of this kind would start at once. `delivered`: handed over ever."""
        interactive = kind.priority is Priority.INTERACTIVE
        before: list[Kind] = []  # what will have a slot first
        if delivered.total != self._arrived.total:
            for one, count in delivered.kinds.items():
                before += [one] * (count - self._arrived.kinds[one])
        for priority, line in self.waiting.items():
            if line and (not interactive or priority is kind.priority):
                before += [job.kind for job in list(line)]
        if self.yielded and not interactive:
            before += [job.kind for job in list(self.yielded)]
        held = self._held.plus(before) if before else self._held
        if may_start(self.rules, held, kind, self.batch_size):
            return True
        if not interactive or not self.rules.max_preemptions:
            return False
        if any(one.priority is Priority.INTERACTIVE for one in before):
            return False  # one at a time may be on its way to a lent slot: another worker may have one free
        return any(makes_room(self.rules, held, job.kind, kind) for job in list(self._seats))

    # -- the loop's thread

    @property
    def running(self) -> int:
        """Jobs that hold a slot."""
        return self._held.total

    def held(self, priority: Priority) -> int:
        """Jobs of one priority that hold a slot."""
        return self._held.priorities[priority]

    def enqueue(self, job: Job) -> None:
        """Start a job now or when a slot is free."""
        self._arrived.add(job.kind)
        self.waiting[job.kind.priority].append(job)
        self._admit()

    def turn_away(self, job: Job) -> None:
        """End a job before it starts, and have its message put back for another worker."""
        self._arrived.add(job.kind)
        self._post(job.on_failure, _failure(Reject("left to another worker", requeue=True)))
        job.ended = True
        self._forget(job)

    def resize(self, rules: SlotRules) -> None:
        """Change the number of slots; running jobs go on."""
        self.rules = rules
        self._admit()

    def set_batch_size(self, size: int) -> None:
        """Change how many batch jobs may hold a slot; running jobs go on."""
        self.batch_size = size
        self._admit()
        self._post(_nothing)  # the hub may take more now

    def forget_waiting(self) -> None:
        """Drop the line without a word to celery: the messages are redelivered or put back."""
        for line in self.waiting.values():
            while line:
                self._forget(line.popleft())

    def drain_yielded(self) -> None:
        """Cancel what has no slot: another worker may have one now, and this one takes nothing up again."""
        for job in list(self.yielded):
            self.cancel(job, "drain")

    def cancel(self, job: Job, reason: CancelReason) -> None:
        """Cancel a job once it notices: a second time would break the clean-up that the first one started."""
        if job.ended or job.reason is not None:
            return
        job.reason = reason
        if job.task is not None:
            self._cancel_until_heard(job)
            return
        self.waiting[job.kind.priority].remove(job)
        self._settle(job, None)

    def _cancel_until_heard(self, job: Job) -> None:
        """Until 3.12 `asyncio.wait_for`, and so redis-py and asyncpg, swallow a cancellation that comes just
        as their answer does: the job would run on as if nothing had been said.
        """
        if job.task is None or job.ended or job.heard:
            return
        job.task.cancel()
        job.timers.append(self._loop.call_later(AGAIN_S, self._cancel_until_heard, job))

    def _admit(self) -> None:
        while (job := self._next()) is not None:
            self._held.add(job.kind)
            if job.task is None:
                self._start(job)
            else:
                job.yielding = False
                job.seat.give_back()
        if self.waiting[Priority.INTERACTIVE]:
            self._look_again()

    def _next(self) -> Job | None:
        """Take the next job that may have a slot out of its line."""
        interactive, standard, batch = (self.waiting[priority] for priority in Priority)
        for line in (interactive, standard, self.yielded, batch):
            for job in line:
                if may_start(self.rules, self._held, job.kind, self.batch_size) or (
                    line is interactive and self._preempt_for(job)
                ):
                    line.remove(job)
                    return job
        return None

    def _preempt_for(self, waiting: Job) -> bool:
        """Have the job that loses least give its slot to `waiting`; False when each is to be left alone."""
        candidates = [
            candidate
            for job, seat in self._seats.items()
            if makes_room(self.rules, self._held, job.kind, waiting.kind)
            and (candidate := seat.candidate(job, self._loop.time())) is not None
        ]
        victim = choose_victim(self.rules, candidates)
        if victim is None:
            return False
        job = victim.key
        self._held.add(job.kind, -1)
        job.yielding = True
        self.yielded.append(job)
        self.preemptions += 1
        self._seats.pop(job).take_away()
        return True

    def _look_again(self) -> None:
        """Who is left alone now may be a victim a little later."""

        def look() -> None:
            self._looking = None
            self._admit()

        if self._looking is None and self._seats and self.rules.max_preemptions:
            self._looking = self._loop.call_later(AGAIN_S, look)

    def set_offer(self, job: Job, seat: Seat | None) -> None:
        """Note that a running job offers its slot, or no longer does."""
        if seat is None:
            self._seats.pop(job, None)
        elif not job.ended:
            self._seats[job] = seat
            self._post(_nothing)  # the hub may take an interactive message now

    def _start(self, job: Job) -> None:
        self._post(job.on_accepted, job.number, time.monotonic())
        job.seat = Seat(self, job, self._loop.time)
        if job.soft_limit_s:
            job.timers.append(self._loop.call_later(job.soft_limit_s, self._soft_limit, job))
        if job.hard_limit_s:
            job.timers.append(self._loop.call_later(job.hard_limit_s, self._hard_limit, job))
        context = contextvars.copy_context()
        context.run(enter, job)
        job.task = self._loop.create_task(run(job), name=f"job-{job.number}", context=context)
        job.task.add_done_callback(partial(self._ended, job))  # also when cancelled before its first step

    def _soft_limit(self, job: Job) -> None:
        if job.reason is None and job.task is not None:
            self._post(job.on_timeout, True, job.soft_limit_s)
            job.soft_pending = True
            job.task.cancel()

    def _hard_limit(self, job: Job) -> None:
        if job.reason is None:
            self._post(job.on_timeout, False, job.hard_limit_s)
            self.cancel(job, "hard")

    def _ended(self, job: Job, task: asyncio.Task[Any]) -> None:
        for timer in job.timers:
            timer.cancel()
        self._seats.pop(job, None)
        if job.yielding:
            self.yielded.remove(job)
        else:
            self._held.add(job.kind, -1)
        self._settle(job, task)
        self._admit()

    def _settle(self, job: Job, task: asyncio.Task[Any] | None) -> None:
        if job.reason == "terminate":
            self._post(job.on_failure, _failure(Terminated(int(signal.SIGTERM))))
        elif job.reason is None and task is not None:
            exc = TaskAbortedError("cancelled before it began") if task.cancelled() else task.exception()
            if exc is None:
                self._post(job.on_result, task.result())
            else:
                self._post(job.on_failure, _failure(exc))
        # drain: without a callback the message stays held and is put back; hard: on_timeout acked it
        job.ended = True
        self._forget(job)


def _nothing() -> None:
    """What is posted so that the hub turns once more and asks what may be consumed."""


def _failure(exc: BaseException) -> ExceptionInfo:
    try:
        raise exc
    except BaseException:  # noqa: BLE001 - it is what billiard makes its record from
        return ExceptionInfo()
