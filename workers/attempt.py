"""One attempt at one task: claim, continue or begin, stream, settle or hand back.

However it goes, exactly one of these happens: the task is settled by this attempt, it is queued for the next
one, or it is someone else's already and nothing is written.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

import orjson
import structlog
from redis.exceptions import RedisError

from core.failures import RULES, Failure
from core.lanes import Priority
from core.pricing import cost_usd_micros
from core.resume import restart_reason
from core.states import TaskState
from runtime import metrics
from storage.records import Claim, Ending, Used
from workers.accounts import Account
from workers.announcing import announce, response_of
from workers.body import choices
from workers.delivery import Delivery
from workers.engine import (
    EngineDeadError,
    EngineFailedError,
    GenerateRequest,
    Output,
    RequestRejectedError,
)
from workers.lending import Lending
from workers.pool import cancel_reason
from workers.progress import Progress
from workers.record import Record
from workers.session import Session

log = structlog.get_logger()
_RETRY_S = 0.5
_WRITTEN_S = 1.0
_BATCH_TOKENS = 8  # taken from the engine at once: nobody waits for each, and each costs a wake-up


class _Rejected(Exception):
    """Carries a failure with its own message out of the generation."""

    def __init__(self, failure: Failure, message: str | None = None) -> None:
        super().__init__(message)
        self.failure, self.message = failure, message


def _is_aborted(output: Output) -> bool:
    return any(delta.finish_reason == "abort" for delta in output.deltas)


class TaskFailedError(Exception):
    """A task ended as failed. For whoever watches Celery: the row has it all. Holds the reason alone, no text."""


async def run(session: Session, task_id: str) -> None:
    """Run the next attempt of a task, if it may run. Raises: TaskFailedError once the task is settled so."""
    claiming = asyncio.ensure_future(session.claim(task_id))
    try:
        claim = await asyncio.shield(claiming)
    except asyncio.CancelledError:
        cancel_reason()  # tells the pool that it was heard
        claim = await claiming  # a claim left to its lease would be blamed on the task
        if claim is not None:
            await Attempt(session, claim).interrupt()
        raise
    if claim is None:
        metrics.CLAIMS.labels(session.settings.model, "refused").inc()
        log.info("claim_refused", task_id=task_id)
        return
    attempt = Attempt(session, claim)
    earlier = session.running.get(task_id)
    if earlier is not None:
        earlier.lose("newer attempt")  # nobody else will tell it: leases and cancels go to the newest
    session.running[task_id] = attempt
    try:
        await attempt.run()
    finally:
        if session.running.get(task_id) is attempt:
            session.leave(attempt)
    if attempt.failed_by is not None:
        raise TaskFailedError(attempt.failed_by.value)


class Attempt:
    """See the module."""

    def __init__(self, session: Session, claim: Claim) -> None:
        self._session = session
        self.claim = claim
        self._record = Record(session.recorder, claim)
        self._body: dict[str, Any] = orjson.loads(claim.request)
        self._progress = Progress(claim.task_id, claim.attempt, (), url=claim.url)
        self.failed_by: Failure | None = None  # the task ended as failed
        self.settling = False  # its row is being ended: a lease that is gone says nothing any more
        self._stop: str | None = None  # why the engine was told to stop: cancel, deadline, lost
        self._stopped = asyncio.Event()
        self._aborting: asyncio.Task[None] | None = None
        self._delivery = Delivery(session, claim, self._record, self._progress)
        self._opened = False  # the stream is: what earlier attempts sent is known
        self._account = Account()  # engine time of this attempt
        self.productive = False  # this attempt has produced a token
        self._exposed = False  # it is in the engine and has not
        self._runs = 0  # of the engine, begun by this attempt: one more each time it lent its slot
        self._restart_reason = restart_reason(self._body, reads_reasoning=session.engine.info.reads_reasoning)
        self._lending = Lending(claim, self._abort, may_continue=self._restart_reason is None)

    @property
    def request_id(self) -> str:
        """Of the engine's present run: an engine never sees one twice."""
        first = f"{self.claim.task_id}.{self.claim.attempt}"
        return first if self._runs < 2 else f"{first}.{self._runs}"

    @property
    def is_batch(self) -> bool:
        """Whether it is batch work."""
        return self.claim.lane.priority is Priority.BATCH

    @property
    def preemptions(self) -> int:
        """How often the task lent its slot, over all attempts."""
        return self._lending.preemptions

    @property
    def tokens_held(self) -> int:
        """Tokens that it keeps in the engine's KV cache."""
        usage = self._record.usage
        return usage.prompt_tokens + len(self._progress.emitted) + usage.output_tokens if usage else 0

    @property
    def used(self) -> Used:
        """What the task used so far, all attempts together."""
        usage = self._progress.usage if self._opened else self.claim.used.usage
        return Used(usage, self.claim.used.engine_us + self._account.used_us)

    # -- told from outside, on the same loop

    def cancel(self) -> None:
        """The owner cancelled: stop generating and settle what there is."""
        self._stop_engine("cancel")

    def lose(self, why: str) -> None:
        """The task is another attempt's now: stop and write nothing."""
        if self._stop != "lost":
            self._record.lost(why)
        self._stop_engine("lost")

    def _stop_engine(self, why: str) -> None:
        if self._stop is None or why == "lost":
            self._stop = why
        self._stopped.set()
        if self._aborting is None:
            self._aborting = asyncio.create_task(self._abort())

    async def _abort(self) -> None:
        await self._session.engine.abort(self.request_id)

    # -- the attempt

    async def run(self) -> None:
        """Do it all. Raises: asyncio.CancelledError, having handed back or settled, when the pool says so."""
        deadline = asyncio.get_running_loop().call_later(
            max(0.0, self.claim.remaining_s), self._stop_engine, "deadline"
        )
        try:
            if await self._open():
                await self._generate()
                await self._settle_generated()
        except _Rejected as rejected:
            await self._end_or_retry(rejected.failure, rejected.message)
        except asyncio.CancelledError:
            cancel_reason()  # tells the pool that it was heard
            await self._session.engine.abort(self.request_id)
            await self.interrupt()
            raise
        except Exception:
            log.exception("attempt_failed", task_id=self.claim.task_id, attempt=self.claim.attempt)
            await self._session.engine.abort(self.request_id)
            await self._end_or_retry(Failure.INTERNAL)
        finally:
            deadline.cancel()
            self._delivery.stop_timer()

    async def interrupt(self) -> None:
        """Hand back or end what the pool cancelled."""
        drained = cancel_reason() == "drain"
        await self._end_or_retry(Failure.WORKER_DRAINED if drained else Failure.TERMINATED)

    async def _open(self) -> bool:
        """Fence off earlier attempts and learn what they streamed; False when a newer one exists."""
        while True:
            try:
                earlier = await self._session.streams.open(
                    self.claim.task_id, self.claim.attempt, keep_s=self.claim.remaining_s
                )
                break
            except (RedisError, OSError) as error:
                log.warning("stream_not_opened", task_id=self.claim.task_id, error=str(error))
                if self._stop is not None:
                    return self._stop != "lost"  # the row is ended without Redis, and holds no slot
                await asyncio.sleep(_RETRY_S)
        if earlier is None:
            self.lose("newer attempt")
            return False
        self._progress = Progress(
            self.claim.task_id,
            self.claim.attempt,
            earlier,
            url=self.claim.url,
            n=choices(self._body),
            keep_s=self.claim.remaining_s,
        )
        self._opened = True
        reason = None
        if self._progress.torn:
            reason = "torn"
        elif self._progress.streamed and not self._progress.complete:
            reason = self._restart_reason
        self._delivery.opened(self._progress)
        if reason is not None:
            log.info("restarted", task_id=self.claim.task_id, because=reason)
            self._session.chunks.append(self._progress.restarted())
        self._session.chunks.append(self._progress.started())
        return True

    async def _generate(self) -> None:
        """Generate to the end, with a pause whenever a person needs the slot."""
        while not self._progress.complete and self._stop is None:
            await self._generate_once()
            if not self._lending.taken or self._progress.complete:
                return
            self._delivery.flush()
            self._progress.checkpoint()
            await self._unless_stopped(self._lending.regained())

    async def _generate_once(self) -> None:
        progress = self._progress
        self._runs += 1
        request = GenerateRequest(
            request_id=self.request_id,
            url=self.claim.url,
            body=self._body,
            max_output_tokens=self.claim.max_output_tokens,
            emitted_token_ids=tuple(progress.emitted),
            cache_salt=self.claim.tenant_id,  # who shares a prefix could otherwise be told by the time it takes
            account=self._account,
            priority=self.claim.lane.priority.rank,
            tokens_at_once=_BATCH_TOKENS if self.is_batch else 1,
        )
        try:
            self._lending.offer(progress, self._delivery.flush)
            async for output in self._outputs(request):
                if self._lending.taken and self._stop is None and _is_aborted(output):
                    break  # what the engine held back at the cut is generated again
                progress.count(output.usage)
                self._record.output(output.usage, progress.usage.output_tokens)
                progress.add(output.deltas)
                self._delivery.send(output.finished)
            self._record.generated()
        except RequestRejectedError as error:
            raise _Rejected(Failure.REQUEST_REJECTED, error.message) from error
        except EngineFailedError as error:
            raise _Rejected(Failure.ENGINE_ERROR) from error
        except EngineDeadError as error:
            self._session.engine_died(str(error))
            raise _Rejected(Failure.ENGINE_DEAD) from error
        finally:
            self._session.courtesy.end(self)
            self._lending.withdraw()

    async def _outputs(self, request: GenerateRequest) -> AsyncIterator[Output]:
        """The engine's outputs; a task under suspicion is alone in being unproven while it has none."""
        await self._engine_ready()
        if self.is_batch:
            step_s = self._session.engine.meter.times.at(len(self._session.running))
            await self._session.courtesy.let_people_go_first(step_s)
        elif self.claim.lane.priority is Priority.INTERACTIVE:
            self._session.courtesy.begin(self)
        async with AsyncExitStack() as alone:
            suspect = self.claim.failures > 0 and not self.productive
            if suspect:
                await alone.enter_async_context(self._session.suspects)
                if not await self._session.set_exposed(self.claim, True):
                    self.lose("lease")
            if self._stop is not None:
                return
            self._exposed = not self.productive
            self._record.sent()
            async with aclosing(self._session.engine.generate(request)) as outputs:
                async for output in outputs:
                    if output.usage.output_tokens and not self.productive:
                        self.productive, self._exposed = True, False
                        self._session.courtesy.end(self)
                        if suspect:  # before the next one goes, or this one would share the blame for it
                            await self._session.set_exposed(self.claim, False)
                        await alone.aclose()
                    yield output

    async def _engine_ready(self) -> None:
        """Wait while the engine is built again, or until told to stop: a dead engine refuses at once, and
        whoever it refuses would be blamed for a death that came before.
        """
        if not self._session.engine_up.is_set():
            await self._unless_stopped(self._session.engine_up.wait())

    async def _unless_stopped(self, waited_for: Coroutine[Any, Any, object]) -> None:
        """Wait, or until told to stop."""
        waits = [asyncio.ensure_future(one) for one in (waited_for, self._stopped.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _settle_generated(self) -> None:
        if self._stop == "lost":
            return
        self._delivery.flush()
        if self._progress.complete:
            await self._settle(TaskState.COMPLETED)
        elif self._stop == "deadline":
            await self._settle(TaskState.INCOMPLETE, Failure.DEADLINE)
        elif self._stop == "cancel":
            await self._settle(TaskState.CANCELLED)
        else:
            # ended without a finish reason and without being asked: the engine was shut down under it
            await self._end_or_retry(Failure.ENGINE_ERROR)

    async def _end_or_retry(self, failure: Failure, message: str | None = None) -> None:
        if self._stop == "lost":
            return
        self.settling = True
        self._delivery.flush()
        if RULES[failure].retriable and await self._session.hand_back(
            self.claim, failure, exposed=self._exposed, used=self.used
        ):
            self._record.handed_back(failure)
            return
        # not to be tried again: out of attempts, fatal, or being cancelled (which the row knows)
        await self._settle(TaskState.FAILED, failure, message)

    async def _settle(
        self, state: TaskState, failure: Failure | None = None, message: str | None = None
    ) -> None:
        self.settling = True
        progress, claim = self._progress, self.claim
        finish_reason = progress.choices[0].finish_reason if 0 in progress.choices else None
        response = None
        if progress.streamed and failure is not Failure.REQUEST_REJECTED:
            response = response_of(self._session, claim, progress)
        used = self.used
        ending = Ending(
            task_id=claim.task_id,
            attempt=claim.attempt,
            state=state,
            usage=used.usage,
            cost_usd_micros=cost_usd_micros(used.usage, claim.tariff, used.engine_us),
            engine_us=used.engine_us,
            tariff_id=claim.tariff.id,
            finish_reason=finish_reason,
            failure=failure,
            failure_message=message,
            response=response,
            ttft_ms=self._delivery.ttft_ms,
            preemptions=self.preemptions,
        )
        # Whoever finds the row ended must find the whole text in the stream; without Redis the row comes first.
        await self._session.chunks.written(_WRITTEN_S)
        ended = await self._session.settle(ending)
        if ended is None:
            self.lose("settled elsewhere")
            return
        if ended is not state:  # a cancel came first
            ending = replace(ending, state=ended, failure=None, failure_message=None)
        if ending.state is TaskState.FAILED:
            self.failed_by = ending.failure
        announce(self._session, claim, progress, ending)
        self._record.ended(ending, progress.text)
