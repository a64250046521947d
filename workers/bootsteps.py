"""What a worker's consumer does besides consuming, against losses of the Redis transport.

`install` adds it all to an application; the pool must be `workers.pool.AsyncioPool`.
"""

import time
import warnings
from functools import partial
from typing import Any

from celery import Celery, bootsteps
from celery.exceptions import CPendingDeprecationWarning
from celery.utils.log import get_logger
from celery.worker import state as worker_state
from celery.worker.consumer import Consumer
from celery.worker.control import inspect_command

from workers import celery_private
from workers.lane_cycle import LaneCycle, is_interactive

logger = get_logger(__name__)

RETRY_S = 0.5
RETRY_MAX_S = 2.0
EVENTS_EVERY_S = (
    0.5  # Flower hears of tasks this often: a message an event cost as much as all else of a task
)
TASKS = "celery.worker.consumer.tasks:Tasks"


class InteractiveConsumer(bootsteps.StartStopStep):  # type: ignore[misc]
    """Consumes the interactive lanes over a channel of their own.

    One BRPOP asks for a fixed set of queues until it is answered. In one channel a BRPOP sent while nothing but
    interactive work may start would keep a slot of other work empty that becomes free meanwhile.
    """

    requires = (TASKS,)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        c.interactive_consumer = None
        super().__init__(c, **kwargs)

    def start(self, c: Any) -> None:
        names = interactive_apart(c.app)
        if not names:
            return
        queues = [c.app.amqp.queues[name] for name in names]
        channel = c.connection.channel()
        c.interactive_consumer = c.app.amqp.TaskConsumer(
            channel, queues=queues, on_decode_error=c.on_decode_error
        )
        c.interactive_consumer.qos(prefetch_count=c.pool.limit + 1)  # a bound on delayed messages only

    def stop(self, c: Any) -> None:
        """Nothing more than `BrpopDrain` does."""

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """Called on every connect, just before celery consumes over its own channel."""
        if c.interactive_consumer:
            c.interactive_consumer.on_message = c.task_consumer.on_message
            c.interactive_consumer.consume()


class PoolLink(bootsteps.StartStopStep):  # type: ignore[misc]
    """Gives the pool the consumer of the current connection: to pause it, and to put messages back; and has
    the pool say what may be consumed.
    """

    requires = (TASKS, InteractiveConsumer)

    def start(self, c: Any) -> None:
        c.pool.consumer = c
        for consumer in celery_private.task_consumers(c):
            celery_private.order_queues_by(consumer.channel, LaneCycle(c.pool.may_consume))

    def stop(self, c: Any) -> None:
        """Nothing: the pool needs the consumer until its drain ended."""

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """Called on every connect, after the pool's and just before celery consumes."""
        c.pool.apply_pause_after_connect()


class BrpopDrain(bootsteps.StartStopStep):  # type: ignore[misc]
    """On a warm stop, reads the reply of the BRPOP in flight, so that a SIGKILL can't lose its message."""

    requires = (TASKS, InteractiveConsumer)

    def start(self, c: Any) -> None:
        """Nothing to start."""

    def stop(self, c: Any) -> None:
        """Called before celery's own step cancels the consumer, and on a lost connection (without one)."""
        if not c.connection:
            return
        for consumer in celery_private.task_consumers(c):
            try:
                celery_private.cancel_and_read_pending(consumer)
            except c.connection_errors:
                logger.warning("the broker went away while the consumer stopped", exc_info=True)


class HeldTagHeartbeat(bootsteps.StartStopStep):  # type: ignore[misc]
    """Restarts the visibility timeout of every held message three times within it.

    Without this a task that takes longer is redelivered while it runs. It runs on the hub's timer, which the
    pool keeps turning while it drains.
    """

    requires = (TASKS, InteractiveConsumer)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        self._entry: Any = None
        super().__init__(c, **kwargs)

    def start(self, c: Any) -> None:
        if self._entry is not None:
            self._entry.cancel()
        visibility_timeout_s = float(c.app.conf.broker_transport_options["visibility_timeout"])
        self._entry = c.timer.call_repeatedly(visibility_timeout_s / 3, self._beat, (c,))

    def stop(self, c: Any) -> None:
        """Nothing: messages are held until the drain ended."""

    def _beat(self, c: Any) -> None:
        if not c.connection:
            return
        try:
            for consumer in celery_private.task_consumers(c):
                celery_private.refresh_held(consumer.channel, time.time())
        except c.connection_errors:  # the hub's own reads notice a lost connection; two more beats are left
            logger.warning("could not refresh held messages", exc_info=True)


class SturdyConsumer(Consumer):  # type: ignore[misc]
    """Survives a broker that goes away while messages are held, and forgets those.

    Celery closes the broken connection twice. The first time fails at the BRPOP in flight, and the second time
    puts held messages back through a transport that is already taken apart: an AttributeError that ends the
    worker. So the BRPOP is dealt with first.

    What still runs can't be acked over the new connection, and the broker redelivers it: marking it acked
    spares each one a failing ack.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Celery asks at every lost connection to decide on a setting that storage.broker has decided on
        warnings.filterwarnings("ignore", r"\s*In Celery 5\.1 we introduced", CPendingDeprecationWarning)
        self._events_due: Any = None
        super().__init__(*args, **kwargs)

    def on_send_event_buffered(self) -> None:
        """Called for each event of a task: send what has gathered, by and by, in one message."""
        if self._events_due is None:
            self._events_due = self.timer.call_after(EVENTS_EVERY_S, self._flush_due)

    def _flush_due(self) -> None:
        self._events_due = None
        try:
            self._flush_events()
        except self.connection_errors:  # the hub's own reads notice a lost connection
            logger.debug("events not sent", exc_info=True)

    def shutdown(self) -> None:
        """As celery's, after the last events."""
        self._flush_due()
        super().shutdown()

    def add_task_queue(self, queue: str, *args: Any, **options: Any) -> None:
        """As celery's (remote control), also for a lane with a channel of its own."""
        if self.interactive_consumer and queue in interactive_apart(self.app):
            self.interactive_consumer.add_queue(self.app.amqp.queues[queue])
            self.interactive_consumer.consume()
        else:
            super().add_task_queue(queue, *args, **options)

    def cancel_task_queue(self, queue: str) -> None:
        """As celery's (remote control), also for a lane with a channel of its own."""
        if self.interactive_consumer and queue in interactive_apart(self.app):
            self.interactive_consumer.cancel_by_queue(queue)
        else:
            super().cancel_task_queue(queue)

    def ensure_connected(self, conn: Any) -> Any:
        """As celery's, but a broker that is back is found within RETRY_MAX_S rather than half a minute."""
        conn.ensure_connection = partial(
            conn.ensure_connection, interval_start=RETRY_S, interval_step=RETRY_S, interval_max=RETRY_MAX_S
        )
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        for consumer in celery_private.task_consumers(self):
            try:
                celery_private.cancel_and_read_pending(consumer)
            except self.connection_errors:
                logger.debug("no reply to the BRPOP in flight", exc_info=True)
        for request in list(worker_state.reserved_requests):
            request.acknowledged = True
        super().on_connection_error_after_connected(exc)


def interactive_apart(app: Celery) -> list[str]:
    """The queues that a channel of its own is for; celery's own consumer takes the others."""
    chosen = app.amqp.queues.consume_from
    return [name for name in app.amqp.queues if name not in chosen and is_interactive(name)]


def install(app: Celery, *, reserved: bool = False) -> None:
    """Make every worker of this application have the steps and the consumer. After its queues are declared.

    `reserved`: slots are reserved for interactive work, so its lanes get a channel of their own. Without such
    slots one channel has to ask for all lanes, or the order between them would be lost.
    """
    app.conf.worker_consumer = f"{__name__}:{SturdyConsumer.__name__}"
    app.steps["consumer"].update({InteractiveConsumer, PoolLink, BrpopDrain, HeldTagHeartbeat})
    others = [name for name in app.amqp.queues if not is_interactive(name)]
    if reserved and others:
        app.amqp.queues.select(others)


@inspect_command()  # type: ignore[untyped-decorator]
def active_queues(state: Any) -> list[dict[str, Any]]:
    """In place of celery's: the queues of all our consumers, for Flower and `celery inspect`."""
    consumers = celery_private.task_consumers(state.consumer)
    return [dict(queue.as_dict(recurse=True)) for consumer in consumers for queue in consumer.queues]
