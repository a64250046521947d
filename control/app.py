"""The control process: its loops, run while it leads. Any number may run; one leads."""

import asyncio
import os
import signal
import socket

import structlog
import uvloop

from control.batches import batch_loops
from control.budgets import Budgets
from control.dispatch import Dispatch
from control.expiry import Expiry
from control.figures import Figures
from control.files import FileRemoval
from control.leader import Leader
from control.listening import listen
from control.loops import Loop, run_loop
from control.recount import Recount
from control.rescue import Rescue
from control.retention import Retention
from control.rounds import Watch
from control.webhooks import Webhooks
from runtime import metrics
from runtime.ended import Endings
from runtime.garbage import spare_what_is_there
from runtime.logs import configure_logs, say_ready
from runtime.metrics_server import serve_metrics
from runtime.resources import open_blobs, open_celery, open_database, open_redis, open_streams
from runtime.sending import WebhookSender
from runtime.settings import Settings
from runtime.tracing import open_tracer
from storage.broker import Publisher
from storage.credit import Ceilings
from storage.depths import BrokerDepths
from storage.due import Due
from storage.wakes import News

log = structlog.get_logger()
_RETENTION_EVERY_S = 30.0
_FIGURES_EVERY_S = 5.0
_FILES_EVERY = 5  # ticks: to their owners they are gone before
_BUDGETS_EVERY_S = 5.0


async def _serve(settings: Settings) -> None:
    database = open_database(settings, name="control")
    redis, broker = open_redis(settings), open_redis(settings, settings.broker_url)
    streams = open_streams(settings, redis)
    blobs = open_blobs(settings)
    tracer = open_tracer(settings, "control")
    endings = Endings(database, settings.log_key, tracer)
    retention = Retention(database, streams, settings=settings)
    ceilings = Ceilings(broker, settings.key_prefix)
    publisher = Publisher(open_celery(settings))
    dispatch = Dispatch(
        database, publisher, ceilings, streams, endings, order=settings.order, idle_s=settings.tick_s
    )
    leader = Leader(database, "control", f"{socket.gethostname()}-{os.getpid()}", settings.leader_lease_s)
    removal = FileRemoval(database, blobs, upload_s=settings.upload_s, retention_s=settings.retention_s)
    watch = Watch(database, settings.tick_s)
    rounds, tick_s = watch.rounds, settings.tick_s
    loops = [
        Loop("watch", tick_s, watch, pause=watch.pause),
        rounds[Due.LEASES].loop("rescue", tick_s, Rescue(database, streams, endings, dispatch.wake)),
        Loop("dispatch", settings.tick_s, dispatch, dispatch.rest, dispatch.pause, counted=False),
        Loop("recount", 2 * tick_s, Recount(database, BrokerDepths(broker, settings.key_prefix))),
        rounds[Due.DEADLINES].loop("expiry", tick_s, Expiry(database, streams, endings)),
        Loop("retention", _RETENTION_EVERY_S, retention),
        *batch_loops(settings, database, blobs, streams, endings, dispatch.wake, tracer, rounds[Due.BATCHES]),
        Loop("files", _FILES_EVERY * tick_s, removal),
    ]
    loops.append(Loop("budgets", _BUDGETS_EVERY_S, Budgets(database)))
    sender = WebhookSender(private_allowed=settings.webhook_private)
    webhooks = Webhooks(database, sender, settings.key_pepper.get_secret_value().encode(), tracer)
    loops.append(rounds[Due.WEBHOOKS].loop("webhooks", tick_s, webhooks))
    figures = Figures(database)
    loops.append(Loop("figures", _FIGURES_EVERY_S, figures, figures.rest))
    metrics.CONTROL_LEADING.set_function(lambda: float(leader.leading))
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    running = [asyncio.create_task(leader.campaign())]
    wake = {News.TASKS: dispatch.wake, News.BATCHES: rounds[Due.BATCHES].stir}
    running.append(asyncio.create_task(listen(broker, settings.key_prefix, wake)))
    running += [asyncio.create_task(run_loop(loop, leader)) for loop in loops]
    spare_what_is_there()
    say_ready("control")
    await stopping.wait()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    try:
        await leader.leave()
    except Exception as error:  # noqa: BLE001 - the lease runs out by itself
        log.warning("lead_not_left", error=type(error).__name__)
    await webhooks.close()
    publisher.close()
    await redis.aclose()
    await broker.aclose()
    blobs.close()
    await database.dispose()
    if tracer is not None:
        await asyncio.to_thread(tracer.close)


def control(settings: Settings) -> None:
    """Run until SIGTERM."""
    configure_logs(settings, process="control")
    with serve_metrics(settings):
        uvloop.run(_serve(settings))
