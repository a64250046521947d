"""What all attempts of one worker share: engine, stores, grouped writes, and the register of what runs."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure
from core.states import TaskState
from runtime.ended import Endings
from runtime.grouping import Grouper
from runtime.publishing import PublishingThread
from runtime.settings import Settings
from runtime.tracing import Tracer
from services import attempt as services
from storage.errors import STORE_ERRORS, is_away
from storage.outbox import Outgoing
from storage.records import Claim, Ending, Used
from storage.streams import Append, EventStreams
from storage.wakes import News
from workers.chunks import ChunkWriter
from workers.courtesy import Courtesy
from workers.engine import Engine
from workers.pacer import FirstTokens
from workers.record import Recorder

if TYPE_CHECKING:
    from workers.attempt import Attempt

Result = TypeVar("Result")
log = structlog.get_logger()
_RETRY_S = (0.1, 0.2, 0.5, 1.0)
_TELL_EVERY_S = 0.2  # at most: short tasks one at a time are no reason to look all the time


class Session:
    """A worker's shared state; lives on the pool's event loop."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        database: AsyncEngine,
        streams: EventStreams,
        publisher: PublishingThread,
        engine_died: Callable[[str], None],
        tracer: Tracer | None = None,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.recorder = Recorder(
            worker=settings.worker_name,
            hash_key=settings.log_key,
            slow_share=settings.slow_share,
            tracer=tracer,
        )
        self._endings = Endings(database, settings.log_key, tracer)
        self.database = database
        self.streams = streams
        self.engine_up = asyncio.Event()  # cleared while the engine is dead or built again
        self.engine_up.set()
        self._engine_died = engine_died
        # Tasks that may have killed an engine go to it one at a time, each until its first token: then only
        # the one that does it is there without a token when it dies, and no bystander is blamed twice.
        self.suspects = asyncio.Lock()
        self.running: dict[str, Attempt] = {}
        self.first_tokens = FirstTokens()  # of interactive work
        self.courtesy = Courtesy()
        self.chunks = ChunkWriter(streams, self._refused)
        self._told_at = 0.0  # monotonic
        self._publisher = publisher
        self._holder = services.Holder(settings.worker_name, settings.model, settings.lease_s)
        self._claims: Grouper[str, Claim | None] = Grouper(self._claim_many)
        self._settles: Grouper[Ending, TaskState | None] = Grouper(self._settle_many)

    # Postgres may be away for a while: what is held in memory is written when it is back. The lease runs out
    # meanwhile and the fencing token decides who was in time.

    async def _insist(self, what: str, write: Callable[[], Awaitable[Result]]) -> Result:
        tries = 0
        while True:
            try:
                return await write()
            except STORE_ERRORS as error:
                if not is_away(error):
                    raise
                log.warning("store_away", what=what, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
                tries += 1

    async def claim(self, task_id: str) -> Claim | None:
        """Claim a task; None when it is not to run (done, cancelled, claimed elsewhere, forbidden)."""
        return await self._insist("claim", lambda: self._claims(task_id))

    async def _claim_many(self, task_ids: Sequence[str]) -> Sequence[Claim | None]:
        claimed = await services.claim(self.database, list(dict.fromkeys(task_ids)), self._holder)
        missed = [task_id for task_id in task_ids if task_id not in claimed]
        if missed:
            # what was claimed before waits here with it: thrown away it would be left to its lease
            claimed |= await self._insist(
                "claim_bounded", lambda: services.claim_bounded(self.database, missed, self._holder)
            )
            refused = [task_id for task_id in missed if task_id not in claimed]
            if refused:
                await self._end_forbidden(refused)
        # the same id twice in a batch is a duplicate message: the first gets the claim
        return [claimed.pop(task_id, None) for task_id in task_ids]

    async def _end_forbidden(self, missed: Sequence[str]) -> None:
        try:
            await self._endings.tell(await services.end_forbidden(self.database, missed))
        except STORE_ERRORS as error:  # they stay queued; what else was claimed must not be lost over them
            log.warning("forbidden_not_ended", tasks=len(missed), error=f"{type(error).__name__}: {error}")

    async def settle(self, ending: Ending) -> TaskState | None:
        """End a task; return the state it ended in, None when it was another attempt's to end."""
        return await self._insist("settle", lambda: self._settles(ending))

    async def _settle_many(self, endings: Sequence[Ending]) -> Sequence[TaskState | None]:
        ended = await services.settle(self.database, endings)
        return [ended.get(ending.task_id) for ending in endings]

    async def hand_back(self, claim: Claim, failure: Failure, *, exposed: bool, used: Used) -> bool:
        """Queue a task for its next attempt at once; False when it is not to have one."""
        queued = await self._insist(
            "hand_back",
            lambda: services.hand_back(
                self.database, claim.task_id, claim.attempt, failure, exposed=exposed, used=used
            ),
        )
        # At a drain the pool puts the message back, if it still holds it: the outbox makes sure. In every other
        # case it is acked and a new one is needed.
        if queued and failure is not Failure.WORKER_DRAINED:
            self._publisher.put(
                Outgoing(claim.task_id, claim.lane, claim.traceparent, claim.tenant_id, claim.turned_back)
            )
        return queued

    async def set_exposed(self, claim: Claim, exposed: bool) -> bool:
        """Note whether a suspect is in the engine without a token; False when it is held no more."""
        return await self._insist(
            "set_exposed",
            lambda: services.set_exposed(self.database, claim.task_id, claim.attempt, exposed),
        )

    def leave(self, attempt: "Attempt") -> None:
        """Take an attempt that is over out of what runs here."""
        del self.running[attempt.claim.task_id]
        if attempt.is_batch and not any(one.is_batch for one in self.running.values()):
            # a batch may have ended with it: what comes after the last line need not wait for the next look
            now = time.monotonic()
            if now - self._told_at > _TELL_EVERY_S:
                self._told_at = now
                self._publisher.tell(News.BATCHES)

    def engine_died(self, why: str) -> None:
        """Told by the first attempt that notices: the others wait for the engine to be built again."""
        self.engine_up.clear()
        self._engine_died(why)

    def _refused(self, entry: Append) -> None:
        attempt = self.running.get(entry.task_id)
        if attempt is not None and attempt.claim.attempt == entry.attempt:
            attempt.lose("fenced")

    def cancel(self, task_id: str) -> None:
        """Stop a task that its owner cancelled, if it runs here."""
        attempt = self.running.get(task_id)
        if attempt is not None:
            attempt.cancel()
