"""The loop's side of the pool: which jobs run, which wait for a slot, and how each of them ends.

Everything here but the constructor runs on the loop's thread. What celery has to hear goes through `post`.
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

from workers.job import CancelReason, Job, TaskAbortedError, enter, run


class Slots:
    """`limit` slots and a line. Each job taken by `enqueue` ends in exactly one call of `forget`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: int,
        post: Callable[..., None],
        forget: Callable[[Job], None],
    ) -> None:
        self.limit = limit
        self.running = 0
        self.waiting: deque[Job] = deque()
        self._loop = loop
        self._post = post
        self._forget = forget

    def enqueue(self, job: Job) -> None:
        """Start a job now or when a slot is free."""
        self.waiting.append(job)
        self._admit()

    def resize(self, limit: int) -> None:
        """Change the number of slots; running jobs go on."""
        self.limit = limit
        self._admit()

    def forget_waiting(self) -> None:
        """Drop the line without a word to celery: the messages are redelivered or put back."""
        while self.waiting:
            self._forget(self.waiting.popleft())

    def cancel(self, job: Job, reason: CancelReason) -> None:
        """Cancel a job once: a second time would break the clean-up that the first one started."""
        if job.ended or job.reason is not None:
            return
        job.reason = reason
        if job.task is not None:
            job.task.cancel()
            return
        self.waiting.remove(job)
        self._settle(job, None)

    def _admit(self) -> None:
        while self.waiting and self.running < self.limit:
            self._start(self.waiting.popleft())

    def _start(self, job: Job) -> None:
        self.running += 1
        self._post(job.on_accepted, job.number, time.monotonic())
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
        self.running -= 1
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


def _failure(exc: BaseException) -> ExceptionInfo:
    try:
        raise exc
    except BaseException:  # noqa: BLE001 - it is what billiard makes its record from
        return ExceptionInfo()
