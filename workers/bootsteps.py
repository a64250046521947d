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

from workers import celery_private

logger = get_logger(__name__)

RETRY_S = 0.5
RETRY_MAX_S = 2.0
TASKS = "celery.worker.consumer.tasks:Tasks"


class PoolLink(bootsteps.StartStopStep):  # type: ignore[misc]
    """Gives the pool the consumer of the current connection: to pause it, and to put messages back."""

    requires = (TASKS,)

    def start(self, c: Any) -> None:
        c.pool.consumer = c

    def stop(self, c: Any) -> None:
        """Nothing: the pool needs the consumer until its drain ended."""

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """Called on every connect, after the pool's and just before celery consumes."""
        c.pool.apply_pause_after_connect()


class BrpopDrain(bootsteps.StartStopStep):  # type: ignore[misc]
    """On a warm stop, reads the reply of the BRPOP in flight, so that a SIGKILL can't lose its message."""

    requires = (TASKS,)

    def start(self, c: Any) -> None:
        """Nothing to start."""

    def stop(self, c: Any) -> None:
        """Called before celery's own step cancels the consumer, and on a lost connection (without one)."""
        if c.task_consumer and c.connection:
            try:
                celery_private.cancel_and_read_pending(c.task_consumer)
            except c.connection_errors:
                logger.warning("the broker went away while the consumer stopped", exc_info=True)


class HeldTagHeartbeat(bootsteps.StartStopStep):  # type: ignore[misc]
    """Restarts the visibility timeout of every held message three times within it.

    Without this a task that takes longer is redelivered while it runs. It runs on the hub's timer, which the
    pool keeps turning while it drains.
    """

    requires = (TASKS,)

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
        consumer = c.task_consumer
        if not (consumer and c.connection):
            return
        try:
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
        super().__init__(*args, **kwargs)

    def ensure_connected(self, conn: Any) -> Any:
        """As celery's, but a broker that is back is found within RETRY_MAX_S rather than half a minute."""
        conn.ensure_connection = partial(
            conn.ensure_connection, interval_start=RETRY_S, interval_step=RETRY_S, interval_max=RETRY_MAX_S
        )
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        if self.task_consumer:
            try:
                celery_private.cancel_and_read_pending(self.task_consumer)
            except self.connection_errors:
                logger.debug("no reply to the BRPOP in flight", exc_info=True)
        for request in list(worker_state.reserved_requests):
            request.acknowledged = True
        super().on_connection_error_after_connected(exc)


def install(app: Celery) -> None:
    """Make every worker of this application have the steps and the consumer."""
    app.conf.worker_consumer = f"{__name__}:{SturdyConsumer.__name__}"
    app.steps["consumer"].update({PoolLink, BrpopDrain, HeldTagHeartbeat})
