"""The worker process: one Celery worker, one pool of coroutines, one engine."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import structlog

from core.health import Health, Transition
from core.lanes import LengthClass, Priority, lanes_of, parse_length_classes
from core.slots import SlotRules, default_ceilings, default_reserved
from runtime.garbage import spare_what_is_there
from runtime.logs import configure_logs, say_ready
from runtime.metrics_server import serve_metrics
from runtime.publishing import PublishingThread
from runtime.resources import open_celery, open_credit, open_database, open_redis, open_streams
from runtime.settings import Settings
from runtime.tracing import Tracer, open_tracer
from services.workers import find_model, forget_worker
from storage.broker import TASK_NAME, declare
from storage.errors import STORE_ERRORS
from storage.records import Model
from workers import attempt, bootsteps, celery_private
from workers.accounts import now_us
from workers.engine import Engine
from workers.fan_out import FanOut
from workers.figures import Figures
from workers.health import HealthWatch
from workers.keeper import EngineKeeper
from workers.leases import hear_cancels, renew_leases
from workers.pacer import Pacer
from workers.pool import AsyncioPool, Hooks
from workers.presence import Presence
from workers.probe import Probe
from workers.session import Session
from workers.slots import Slots
from workers.time_sheet import TimeSheet

log = structlog.get_logger()
_WRITE_OUT_S = 3.0  # at the end, for chunks that Redis has not taken yet


class Worker:
    """A worker's parts from start to end; the coroutines run on the pool's loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.pool_of: Callable[[], AsyncioPool | None] = lambda: None  # Celery builds it late
        self._state = "starting"
        self._tasks: list[asyncio.Task[None]] = []
        self._session: Session | None = None
        self._tracer: Tracer | None = None

    async def start(self) -> None:
        """Load the engine and open the stores; nothing is consumed before this ended."""
        settings = self._settings
        self._database = open_database(settings, name="worker", plan_once=True)
        self._redis = open_redis(settings)
        model = await find_model(self._database, settings.model)
        self._engine = FanOut(build_engine(settings, model))
        self._time = TimeSheet(settings.worker_name, settings.model, self._engine.accounts)
        await self._engine.start()
        streams = open_streams(settings, self._redis)
        self._publisher = PublishingThread(open_celery(settings), self._database, open_credit(settings))
        self._publisher.start()
        self._watch = HealthWatch(
            self._engine,
            Probe(self._engine, model.probe_prompt, model.probe_words),
            running=self._running,
            window_s=settings.health_window_s,
            probe_s=settings.probe_s,
            timeout_s=settings.engine_stuck_s,
            drain_s=settings.drain_s,
        )
        self._keeper = EngineKeeper(
            self._engine,
            check_s=settings.engine_check_s,
            stuck_s=settings.engine_stuck_s,
            on_state=self._engine_state,
            prove=self._watch.prove,
        )
        self._tracer = open_tracer(settings, "worker")
        self._session = Session(
            settings,
            self._engine,
            self._database,
            streams,
            self._publisher,
            self._keeper.died,
            self._tracer,
        )
        presence = self._presence()
        self._watch.on_change = partial(self._health_changed, presence)
        figures = Figures(self._session, self._engine, bandwidth=settings.memory_bandwidth)
        self._tasks = [duty(presence.keep()), duty(figures.keep())]
        await self._keeper.prove()  # a worker that is started but wrong never takes a task
        self._tasks += [
            duty(renew_leases(self._session)),
            duty(hear_cancels(self._session, self._redis)),
            duty(self._keeper.keep()),
            duty(self._watch.keep(self._keeper, figures)),
            duty(self._pacer().keep()),
        ]
        spare_what_is_there()
        self._state = "ready"
        say_ready("worker", model=settings.model, engine=self._engine.info.kind)

    def _health_changed(self, presence: Presence, change: Transition) -> None:
        presence.health_changed(change)
        pool = self.pool_of()
        if change.after is Health.UNHEALTHY and pool is not None:
            pool.pause_consuming()  # until the keeper says that an engine is ready

    def _running(self) -> int:
        return len(self._session.running) if self._session else 0

    def _presence(self) -> Presence:
        def shun(priorities: frozenset[Priority]) -> None:
            if (pool := self.pool_of()) is not None:
                pool.shunned = priorities

        return Presence(
            self._settings,
            self._database,
            self._engine,
            self._time,
            self._watch.policy,
            slot_rules(self._settings, self._engine.info.max_num_seqs),
            state=lambda: self._state,
            running=self._running,
            shun=shun,
        )

    def _pacer(self) -> Pacer:
        assert self._session is not None

        def slots() -> Slots | None:
            pool = self.pool_of()
            return pool.slots if pool is not None else None

        target_s = self._settings.interactive_first_token_s
        return Pacer(self._session.first_tokens, self._engine, slots, target_s=target_s)

    async def run_task(self, task_id: str) -> None:
        """Run one attempt at a task."""
        assert self._session is not None
        await attempt.run(self._session, task_id)

    def drain(self) -> None:
        """Note that no more is taken; called on the main thread."""
        self._state = "draining"

    async def stop(self) -> None:
        """End the engine and close the stores, after the pool has drained."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.chunks.drain(_WRITE_OUT_S)
            await self._session.chunks.stop()
            await self._publisher.stop()
            spent = self._time.read(datetime.now(UTC), now_us(), ended=True)
            try:
                await forget_worker(self._database, self._settings.worker_name, spent)
            except STORE_ERRORS as error:
                log.warning("worker_row_left", error=type(error).__name__)
        if hasattr(self, "_engine"):
            await self._engine.stop()
        await self._redis.aclose()
        await self._database.dispose()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def _engine_state(self, state: str, why: str) -> None:
        self._watch.engine_state(state, why)
        if self._state != "draining":
            self._state = state
        if self._session is not None:
            self._session.engine_up.set() if state == "ready" else self._session.engine_up.clear()
        pool = self.pool_of()
        if pool is not None:
            pool.resume_consuming() if state == "ready" else pool.pause_consuming()


def duty(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run what a worker does all its life; should it end by itself, the worker drains and ends too."""
    task = asyncio.create_task(work)
    task.add_done_callback(_end_worker)
    return task


def _end_worker(task: asyncio.Task[None]) -> None:
    # Without one of them a worker looks alive and does harm: leases that nobody renews are taken for lost
    if not task.cancelled():
        log.critical("duty_ended", duty=str(task.get_coro()), exc_info=task.exception())
        celery_private.request_stop()


def build_engine(settings: Settings, model: Model) -> Engine:
    """Make the engine that settings ask for, not yet started."""
    if settings.engine == "deterministic":
        from workers.deterministic import DeterministicEngine

        return DeterministicEngine(
            model=model.name,
            path=model.path,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=model.max_model_len,
            step_s=settings.deterministic_step_s,
        )
    from workers.vllm_engine import VLLMEngine
    from workers.vllm_parsing import ParserNames

    return VLLMEngine(
        model=model.name,
        path=model.path,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=model.max_model_len,
        kv_cache_bytes=settings.kv_cache_bytes,
        gpu_memory_share=settings.gpu_memory_share,
        max_batched_tokens=settings.max_batched_tokens,
        engine_args=read_engine_args(settings.engine_args_file),
        parsers=ParserNames(model.tool_parser, model.reasoning_parser),
    )


def slot_rules(settings: Settings, total: int) -> SlotRules:
    """Share a number of slots as the settings say. Raises: ValueError."""
    served = parse_length_classes(settings.lanes)
    ceilings = default_ceilings(total, served)
    for length_class, ceiling in (
        (LengthClass.MEDIUM, settings.max_running_medium),
        (LengthClass.LONG, settings.max_running_long),
    ):
        if ceiling is not None:
            ceilings[length_class] = ceiling
    reserved = settings.reserved_slots
    return SlotRules(
        total,
        default_reserved(total) if reserved is None else reserved,
        ceilings,
        settings.max_preemptions,
        settings.preemption_rest_s,
    )


def read_engine_args(file: Path | None) -> dict[str, Any]:
    """Read further AsyncEngineArgs. Raises: ValueError when the file holds no JSON object."""
    if file is None:
        return {}
    try:
        arguments = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{file}: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"{file}: must hold a JSON object of engine arguments")
    return arguments


def work(settings: Settings) -> int:
    """Run a worker until SIGTERM; return its exit code."""
    configure_logs(settings, process="worker")
    if not settings.model:
        print("headrace worker: name the model to serve (--model or HEADRACE_MODEL)", file=sys.stderr)  # noqa: T201
        return 2
    app = open_celery(settings)
    try:
        lanes = lanes_of(settings.model, parse_length_classes(settings.lanes))
        rules = slot_rules(settings, settings.max_num_seqs)
    except ValueError as error:
        print(f"headrace worker: {error}", file=sys.stderr)  # noqa: T201
        return 2
    declare(app, [lane.queue for lane in lanes])
    bootsteps.install(app, reserved=rules.reserved > 0)
    worker = Worker(settings)

    # `throws`: expected, so that Celery tells its watchers and writes no traceback
    @app.task(name=TASK_NAME, throws=(attempt.TaskFailedError,))  # type: ignore[untyped-decorator]
    async def generate(task_id: str) -> None:
        await worker.run_task(task_id)

    AsyncioPool.hooks = Hooks(
        startup=worker.start,
        shutdown=worker.stop,
        draining=worker.drain,
        drain_s=settings.drain_s,
        rules=partial(slot_rules, settings),
    )
    celery_worker = app.Worker(
        pool_cls="workers.pool:AsyncioPool",
        concurrency=settings.max_num_seqs,
        hostname=f"{settings.model}@{settings.worker_name}",
        without_mingle=True,
        without_gossip=True,
        quiet=True,
        loglevel=settings.log_level.upper(),
    )
    worker.pool_of = lambda: celery_worker.pool
    with serve_metrics(settings):
        celery_worker.start()
    return int(celery_worker.exitcode or 0)
