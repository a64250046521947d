"""May a task be accepted, and how long would it wait? From counts at most a second old, and what came since."""

import asyncio
import time
from dataclasses import dataclass
from hashlib import blake2b

from sqlalchemy.ext.asyncio import AsyncEngine

from core.admission import Ask, Bound, Promises, Refusal, judge
from core.lanes import Lane, Priority
from core.pace import Pace
from core.waits import ModelBacklog, own_turn_s, wait_s
from runtime.settings import Settings
from schemas.errors import RequestError
from services.measure import QueueCounts, read_queue
from storage.records import NewTask, Task

_FRESH_S = 1.0
_NONE = Pace()
_MESSAGES = {
    "lane_full": "The lane {lane} is full.",
    "tenant_queue_full": "You have as much queued as you may.",
    "deadline_unreachable": "The deadline can't be met: about {wait:.0f} s in the queue and {run:.0f} s to run.",
    "not_started_in_time": "No capacity becomes free in time: about {wait:.0f} s. Submit it as a task to wait longer.",
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """Where a queued task stands."""

    position: int  # 1: the next
    tokens_ahead: int
    wait_s: float | None  # None: the model's rate is unknown
    others_ahead: bool  # rather than its own tenant's


class Admission:
    """One process's; others may accept as much again within the same second."""

    def __init__(self, database: AsyncEngine, settings: Settings) -> None:
        self._database, self._settings = database, settings
        self._promises = Promises()
        self._at = 0.0
        self._lock = asyncio.Lock()
        self._load(QueueCounts([], {}, {}, {}, {}))

    def _load(self, counts: QueueCounts) -> None:
        self._counts = counts
        self._tokens: dict[str, ModelBacklog] = {}
        self._tasks: dict[str, ModelBacklog] = {}
        self._lanes: dict[Lane, list[float]] = {}
        for one in counts.backlog:
            self._count(one.lane, one.tenant_id, one.tasks, one.tokens)

    def _count(self, lane: Lane, tenant_id: str, tasks: int, tokens: int) -> None:
        self._tokens.setdefault(lane.model, ModelBacklog()).add(lane.priority, tenant_id, tokens)
        self._tasks.setdefault(lane.model, ModelBacklog()).add(lane.priority, tenant_id, tasks)
        of_lane = self._lanes.setdefault(lane, [0, 0])
        of_lane[0] += tasks
        of_lane[1] += tokens

    async def _refresh(self) -> None:
        if time.monotonic() - self._at > _FRESH_S:
            async with self._lock:
                if time.monotonic() - self._at > _FRESH_S:
                    self._load(await read_queue(self._database))
                    self._at = time.monotonic()

    def pace(self, model: str) -> Pace:
        """How fast a model is known to be."""
        return self._counts.paces.get(model, _NONE)

    async def admit(self, new: NewTask, start_within_s: float | None = None) -> float | None:
        """Count a task in, before it is stored; return how long it is estimated to wait.

        Raises: RequestError 503, 429 with a time to ask again after.
        """
        await self._refresh()
        now, tokens = time.monotonic(), new.prompt_tokens + new.max_output_tokens
        key = blake2b(
            f"{new.caller.tenant_id}\0{new.lane.queue}\0{new.request}".encode(errors="replace")
        ).digest()
        promised = self._promises.take(key, now)
        ask = self._ask(new, tokens, start_within_s, {} if promised else self._promises.standing(now))
        refusal = judge(ask)
        if refusal is not None:
            pool = (new.lane.model, str(new.lane.priority), new.caller.tenant_id)
            self._promises.make(key, pool, tokens, refusal.retry_after_s, now)
            raise _error_of(refusal, new.lane, ask)
        self._count(new.lane, new.caller.tenant_id, 1, tokens)
        return ask.wait_s

    def _ask(
        self,
        new: NewTask,
        tokens: int,
        start_within_s: float | None,
        promised: dict[tuple[str, str, str], float],
    ) -> Ask:
        lane, tenant_id, pace = new.lane, new.caller.tenant_id, self.pace(new.lane.model)
        backlog, tasks = self._with(lane.model, promised), self._tasks.get(lane.model, ModelBacklog())
        ahead = backlog.ahead(
            lane.priority, tenant_id, self._counts.weights, fifo=self._settings.order == "fifo"
        )
        lane_tasks, lane_tokens = self._lanes.get(lane, (0, 0))
        settings, own = self._settings, self._counts.bounds.get(tenant_id, Bound())
        return Ask(
            tokens=tokens,
            lane_tasks=int(lane_tasks),
            lane_tokens=lane_tokens,
            tenant_tasks=int(sum(tasks.of(priority, tenant_id) for priority in Priority)),
            tenant_tokens=sum(self._tokens_of(lane.model, priority, tenant_id) for priority in Priority),
            lane_bound=Bound(settings.max_queued_tasks, settings.max_queued_tokens),
            tenant_bound=Bound(
                settings.max_tenant_queued_tasks if own.tasks is None else own.tasks,
                settings.max_tenant_queued_tokens if own.tokens is None else own.tokens,
            ),
            tokens_per_s=pace.tokens_per_s,
            wait_s=self._wait_s(lane, tenant_id, ahead.total, tasks.of(lane.priority, tenant_id)),
            needs_s=pace.needs_s(new.max_output_tokens),
            start_within_s=start_within_s,
            deadline_s=new.deadline_s,
        )

    def _wait_s(self, lane: Lane, tenant_id: str, ahead_tokens: float, own_tasks: float) -> float | None:
        """`own_tasks`: its tenant's that go before it in its own priority."""
        pace = self.pace(lane.model)
        by_rate = wait_s(ahead_tokens, pace)
        by_bound = own_turn_s(own_tasks, self._counts.running_bounds.get(tenant_id), pace)
        return None if by_rate is None else max(by_rate, by_bound)

    def _tokens_of(self, model: str, priority: Priority, tenant_id: str) -> float:
        return self._tokens[model].of(priority, tenant_id) if model in self._tokens else 0.0

    def _with(self, model: str, promised: dict[tuple[str, str, str], float]) -> ModelBacklog:
        standing = self._tokens.get(model, ModelBacklog())
        of_model = {key: amount for key, amount in promised.items() if key[0] == model}
        if not of_model:
            return standing
        both = ModelBacklog({priority: dict(tenants) for priority, tenants in standing.waiting.items()})
        for (_, priority, tenant_id), amount in of_model.items():
            both.add(Priority(priority), tenant_id, amount)
        return both

    async def estimate(
        self, task: Task, own_tasks: int | None, own_tokens: int | None, *, at_bound: bool = False
    ) -> Estimate:
        """Say where a queued task stands; `own_*`: what of its tenant goes before it, None: all there is.

        `at_bound`: its tenant runs as many as it may, so that one of them has to end first.
        """
        await self._refresh()
        lane, weights = task.lane, self._counts.weights
        fifo = self._settings.order == "fifo"
        tasks = self._tasks.get(lane.model, ModelBacklog())
        tokens = self._tokens.get(lane.model, ModelBacklog())
        ahead = tokens.ahead(lane.priority, task.tenant_id, weights, own=own_tokens, fifo=fifo)
        before = tasks.ahead(lane.priority, task.tenant_id, weights, own=own_tasks, fifo=fifo)
        return Estimate(
            position=int(before.total) + 1,
            tokens_ahead=int(ahead.total),
            wait_s=self._wait_s(lane, task.tenant_id, ahead.total, before.own + at_bound),
            others_ahead=ahead.others + ahead.higher > ahead.own,
        )


def _error_of(refusal: Refusal, lane: Lane, ask: Ask) -> RequestError:
    message = _MESSAGES[refusal.code].format(lane=lane.queue, wait=ask.wait_s or 0.0, run=ask.needs_s)
    headers = {"Retry-After": str(round(refusal.retry_after_s))}
    return RequestError(429 if refusal.of_tenant else 503, message, refusal.code, headers=headers)
