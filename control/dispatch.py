"""The dispatcher: while more waits than can start, it decides what goes to the broker next, and how much.

It is the outbox's reader too: a queued row that the broker does not have is published sooner or later, since a
row is marked only after the broker took its message. Where nothing waits, whoever accepts a task publishes it
at once, under the ceilings that are set here.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

import structlog
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from control.announce import announce
from control.measuring import Measuring
from control.queue import BUSY_S, Queue
from core.failures import Failure
from core.lanes import Lane, Priority
from core.order import Head, Turns, plan_fair, plan_fifo
from core.prefix import Streak, lengthen
from core.states import TaskState
from runtime.ended import Endings
from runtime.publishing import wakeup_of
from services.dispatch import Surroundings, View, expire_late, lift_shares, look, look_around
from services.publish import note_published
from storage.broker import BrokerUnavailableError, Publisher
from storage.credit import Ceilings
from storage.outbox import Outgoing
from storage.queue_heads import Group
from storage.streams import EventStreams

log = structlog.get_logger()
OLDER_S = 0.1  # who accepts a task publishes it, or says that it waits, well within this
_AROUND_S = 1.0  # as often as a replica describes itself
_SHARE = 5  # a look takes at most about one part in so many of the time


class Dispatch:
    """The dispatcher's tick, and its pause."""

    def __init__(
        self,
        database: AsyncEngine,
        publisher: Publisher,
        ceilings: Ceilings,
        streams: EventStreams,
        endings: Endings,
        *,
        order: str,
        idle_s: float,
        older_s: float = OLDER_S,
        around_s: float = _AROUND_S,
    ) -> None:
        self._database, self._publisher, self._ceilings = database, publisher, ceilings
        self._streams, self._endings, self._fifo = streams, endings, order == "fifo"
        self._idle_s, self._older_s, self._around_s = idle_s, older_s, around_s
        self._measuring = Measuring(database)
        self._turns: dict[str, Turns] = {}
        self._streaks: dict[Group, Streak] = {}
        self._active: dict[str, set[str]] = {}  # tenants by model, at the look before
        self._floors: dict[str, float] = {}
        self._rest_s: float | None = None  # until the next look, heard or not; None: nothing waits
        self._took_s = 0.0
        self._around: Surroundings | None = None
        self._around_at = 0.0  # monotonic
        self._wake = asyncio.Event()

    def rest(self) -> None:
        """Another process leads now: what this one knew is of the past."""
        self._measuring.forget()
        self._around = None
        self._turns.clear()
        self._streaks.clear()
        self._active.clear()
        self._floors.clear()

    async def pause(self) -> None:
        """Wait for the next look: for a moment, and then until there is news, or for a while."""
        at_least_s = 0.0 if self._rest_s is None else max(BUSY_S, self._took_s * _SHARE)
        rest_s = self._idle_s if self._rest_s is None else self._rest_s
        await asyncio.sleep(at_least_s)
        if rest_s <= at_least_s:
            return  # what was heard meanwhile may be too young to be seen at the next look: it is heard after that
        try:
            async with asyncio.timeout(rest_s - at_least_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()
        await asyncio.sleep(self._older_s)  # it is not seen before

    def wake(self) -> None:
        """Something waits: look at once."""
        self._wake.set()

    async def __call__(self) -> Mapping[str, int]:
        """Send what can start soon, and set the ceilings for what comes meanwhile."""
        began = time.monotonic()
        try:
            held = await self._ceilings.held()
        except RedisError:
            held = None  # publishing fails as well, and the ceilings run out
        view = await look(self._database, await self._look_around(), older_s=self._older_s)
        queue = Queue(view, await self._measuring.paces(), fifo=self._fifo)
        await self._measuring.take(queue)
        counters = {} if self._fifo else await self._lift(view, queue)
        sent = late = 0
        if queue.groups_with_room() and held is not None:
            sent, late = await self._send(view, queue, counters)
        if held is not None:
            try:
                await self._ceilings.put(queue.ceilings(held), queue.held_tenants())
            except RedisError as error:
                log.warning("ceilings_not_set", error=str(error))
        self._rest_s = queue.rest_s()
        self._took_s = time.monotonic() - began
        return {"sent": sent, "late": late}

    async def _look_around(self) -> Surroundings:
        """What changes slowly is read now and then."""
        if self._around is None or time.monotonic() - self._around_at > self._around_s:
            self._around, self._around_at = await look_around(self._database), time.monotonic()
        return self._around

    async def _send(
        self, view: View, queue: Queue, counters: Mapping[str, Mapping[str, float]]
    ) -> tuple[int, int]:
        heads = await queue.read(self._database, self._streaks, older_s=self._older_s)
        picks, late = list[Head](), list[Head]()
        for model, of_model in heads.items():
            if self._fifo:
                plan = plan_fifo(of_model, queue.fleets[model], queue.places)
            else:
                plan = plan_fair(
                    of_model,
                    queue.fleets[model],
                    counters=counters[model],
                    weights=view.weights,
                    turns=self._turns.setdefault(model, Turns()),
                    places=queue.places,
                )
                self._note_streaks(model, plan.picks)
            late += plan.late
            picks += plan.picks
            if plan.picks and not await self._publish([queue.outgoing(head) for head in plan.picks]):
                break
        if late:
            ended = await expire_late(self._database, [head.id for head in late])
            await self._endings.tell(ended)
            for task_id in ended:
                await announce(self._streams, task_id, TaskState.EXPIRED, Failure.DEADLINE)
        return len(picks), len(late)

    async def _lift(self, view: View, queue: Queue) -> dict[str, dict[str, float]]:
        """Raise the counters of tenants that came back since the last look; return all counters by model.

        At every look, with a backlog or without: who was served alone for a while is no reason to let others,
        whose counters stood still, go before it until they are level.
        """
        counters: dict[str, dict[str, float]] = {}
        for model in queue.fleets:
            served = {tenant: level for (of, tenant), level in view.served.items() if of == model}
            active = queue.active(model)
            newcomers = active - self._active.get(model, active)
            raised = queue.lift(model, served, newcomers, self._floors.get(model, 0.0))
            self._active[model], self._floors[model] = active, raised.floor
            if raised.served:
                await lift_shares(self._database, model, raised.served)
            counters[model] = queue.with_in_flight(model, served | raised.served)
        return counters

    def _note_streaks(self, model: str, picks: Sequence[Head]) -> None:
        by_group: dict[Group, list[Head]] = {}
        for head in picks:
            if head.priority is Priority.BATCH:
                lane = Lane(model, head.length_class, head.priority)
                by_group.setdefault(Group(lane, head.tenant_id), []).append(head)
        for group, heads in by_group.items():
            streak = lengthen(self._streaks.get(group), heads)
            if streak is None:
                self._streaks.pop(group, None)
            else:
                self._streaks[group] = streak

    async def _publish(self, picks: Sequence[Outgoing]) -> bool:
        try:
            await asyncio.to_thread(self._publisher.publish_many, [wakeup_of(one) for one in picks])
        except BrokerUnavailableError as error:
            log.warning("not_sent", tasks=len(picks), error=str(error))
            return False
        await note_published(self._database, picks)
        return True
