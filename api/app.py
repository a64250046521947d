"""The API process: state opened at start, routes, and one place for errors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import structlog
import uvicorn
from fastapi import FastAPI

from api import (
    admin,
    batches,
    chat,
    completions,
    errors,
    events,
    files,
    health,
    landing,
    metrics,
    models,
    openapi,
    response_follow,
    responses,
    tasks,
    usage,
    webhooks,
)
from api.access import AccessCache
from api.aside import Aside
from api.live import LiveEvents
from api.state import ApiState
from api.tracing import TraceRequests
from runtime.admission import Admission
from runtime.capacity import MemoryAlarm
from runtime.ended import Endings
from runtime.garbage import spare_what_is_there
from runtime.logs import configure_logs
from runtime.open_files import raise_open_files
from runtime.publishing import PublishingThread
from runtime.resources import (
    open_blobs,
    open_celery,
    open_credit,
    open_database,
    open_redis,
    open_streams,
)
from runtime.settings import Settings
from runtime.tracing import Tracer, open_tracer
from services.deliver import mark_delivered
from storage.limits import RateLimiter

log = structlog.get_logger()


@asynccontextmanager
async def _opened(settings: Settings, tracer: Tracer | None) -> AsyncIterator[ApiState]:
    database = open_database(settings, name="api")
    redis, broker = open_redis(settings), open_redis(settings, settings.broker_url)
    streams = open_streams(settings, redis)
    blobs = open_blobs(settings)
    live = LiveEvents(redis, streams, database)
    publisher = PublishingThread(open_celery(settings), database, open_credit(settings))
    state = ApiState(
        settings=settings,
        database=database,
        redis=redis,
        streams=streams,
        blobs=blobs,
        live=live,
        publisher=publisher,
        access=AccessCache(database, settings.key_pepper.get_secret_value().encode()),
        admission=Admission(database, settings),
        memory=MemoryAlarm((redis, broker), settings.memory_alarm_share),
        limiter=RateLimiter(redis, settings.key_prefix),
        deliveries=Aside("deliveries", partial(mark_delivered, database), every_s=1.0, again_s=60.0),
        endings=Endings(database, settings.log_key, tracer),
    )
    publisher.start()
    await live.start()
    asides = (state.access.uses, state.deliveries)
    writing = [asyncio.create_task(aside.run()) for aside in asides]
    try:
        yield state
    finally:
        for task, aside in zip(writing, asides, strict=True):
            task.cancel()
            await aside.write()
        await live.stop()
        await publisher.stop()
        await redis.aclose()
        await broker.aclose()
        blobs.close()
        await database.dispose()


def create_app(settings: Settings) -> FastAPI:
    """Build the ASGI application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.tracer = open_tracer(settings, "api")
        async with _opened(settings, app.state.tracer) as state:
            app.state.headrace = state
            spare_what_is_there()
            log.info("ready")
            yield
        if app.state.tracer is not None:
            await asyncio.to_thread(app.state.tracer.close)

    app = FastAPI(title="Headrace", version="0.1.0", lifespan=lifespan, redirect_slashes=False)
    app.add_middleware(TraceRequests, tracer=lambda: app.state.tracer)
    app.add_middleware(errors.RequestIds)
    app.add_middleware(metrics.CountRequests)
    errors.install(app)
    openapi.install(app)
    openai = (chat, completions, responses, response_follow, models, files, batches)
    for resource in (*openai, tasks, events, usage, webhooks, health, metrics, landing, *admin.RESOURCES):
        app.include_router(resource.router)
    return app


def serve(settings: Settings) -> None:
    """Run until SIGTERM; open streams get a moment to end."""
    configure_logs(settings, process="api")
    raise_open_files()
    uvicorn.run(
        create_app(settings),
        host=settings.api_host,
        port=settings.api_port,
        log_config=None,
        access_log=False,
        loop="uvloop",
        http="httptools",
        ws="none",
        timeout_graceful_shutdown=5,
        backlog=4096,
        server_header=False,
    )
