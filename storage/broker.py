"""The Celery application and the only publishes to the broker.

A broker message is a wake-up: it carries a task's id and nothing of its content, so it may be lost, doubled
or late without harm. The task row decides; whoever publishes marks the row only after `publish` returned.

Queues are one per lane and named by the caller. They stand on the default exchange, so that restoring a
message needs no binding table which a flush or an eviction could take away.

Units: `*_s` seconds.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.utils.nodenames import anon_nodename
from kombu import Exchange, Queue
from kombu.exceptions import BatchPublishError, OperationalError

TASK_NAME = "headrace.generate"  # the one task: everything else is in its row
PRIORITY_STEPS = [0]  # one list a queue: lanes carry the priority
SOCKET_TIMEOUT_S = 10  # must exceed the transport's BRPOP timeout (1 s)
HEALTH_CHECK_S = 10  # a half-open connection is noticed within about twice this
ETA_LIMIT = 256  # delays live in Postgres; this bounds what a stray countdown could make a worker hold
RESTORE_EVERY_S = 5  # between two scans for messages whose visibility ran out
RESTORE_BATCH = 20  # per scan: each restore watches the whole unacked hash and starves in larger batches
RESTORE_MUTEX_S = 30  # how long a restorer that died can keep the others from restoring
BATCH_COMMANDS = 500  # publishes per pipeline


class BrokerUnavailableError(Exception):
    """The broker did not confirm; what was being published may or may not have arrived."""


@dataclass(frozen=True, slots=True)
class Wakeup:
    """One message: run this task."""

    queue: str  # the lane's
    task_id: str  # the row's id, and Celery's
    headers: Mapping[str, str] | None = None  # such as traceparent


def make_celery(broker_url: str, *, key_prefix: str = "hr", visibility_timeout_s: int = 60) -> Celery:
    """The application that publishers, workers and Flower share; no queue is declared yet."""
    app = Celery("headrace", broker=broker_url, set_as_current=False)
    app.conf.update(
        # Delivery: a message is acked when its attempt ended, whatever the end; retries belong to Postgres
        task_acks_late=True,
        task_acks_on_failure_or_timeout=True,
        worker_prefetch_multiplier=1,
        worker_eta_task_limit=ETA_LIMIT,
        worker_disable_rate_limits=True,
        # A lost connection must not stop generations: a redelivered copy meets a live lease and is acked away
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_soft_shutdown_timeout=0.0,
        worker_enable_soft_shutdown_on_idle=False,
        # Results are the product's own
        result_backend=None,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_track_started=False,
        # Events only while somebody watches: Flower turns them on
        worker_send_task_events=False,
        task_send_sent_event=False,
        # Any writer to the broker can invoke a task: never unpickle
        task_serializer="json",
        result_serializer="json",
        event_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        # Queues: the default exchange, no default queue, and a typo must not create one that nobody reads
        task_default_exchange="",
        task_default_routing_key="",
        task_default_queue="",
        task_create_missing_queues=False,
        task_default_priority=PRIORITY_STEPS[0],
        worker_detect_quorum_queues=False,
        broker_transport="storage.redis_transport:Transport",
        # Connection: keep trying
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "global_keyprefix": f"{key_prefix}:q:",
            "visibility_timeout": visibility_timeout_s,
            "unacked_restore_interval": RESTORE_EVERY_S,
            "unacked_restore_throttle": 1,
            "unacked_restore_limit": RESTORE_BATCH,
            "unacked_mutex_expire": RESTORE_MUTEX_S,
            "priority_steps": PRIORITY_STEPS,
            "queue_order_strategy": "priority",
            "health_check_interval": HEALTH_CHECK_S,
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": SOCKET_TIMEOUT_S,
            "socket_keepalive": True,
        },
        # Logs are the process's, not Celery's
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        enable_utc=True,
    )
    return app


def declare(app: Celery, queue_names: Sequence[str]) -> None:
    """Make a worker of this application consume these queues, most preferred first."""
    for name in queue_names:
        app.amqp.queues.select_add(Queue(name, Exchange(""), routing_key=name))


class Publisher:
    """One connection and one producer, for one publishing thread.

    A lock makes other threads wait rather than corrupt the connection. Calls block, for up to about 6 s when
    the broker refuses connections: keep them off event loops. redis-py sends again on a broken connection,
    which may double a wake-up; that is harmless.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._origin = anon_nodename()
        self._lock = threading.Lock()
        self._connection: Any = None
        self._producer: Any = None

    def publish(self, wakeup: Wakeup) -> None:
        """Publish one wake-up. Raises: BrokerUnavailableError."""
        self.publish_many([wakeup])

    def publish_many(self, wakeups: Iterable[Wakeup]) -> int:
        """Publish wake-ups in pipelines, in order; returns how many.

        Raises: BrokerUnavailableError, and then any number of them may have arrived.
        """
        batch = list(wakeups)
        if not batch:
            return 0
        with self._lock:
            try:
                self._send(batch)
            except self._errors as exc:
                self._disconnect()
                raise BrokerUnavailableError(str(exc)) from exc
        return len(batch)

    def close(self) -> None:
        """Close the connection; a later publish opens a new one."""
        with self._lock:
            self._disconnect()

    @property
    def _errors(self) -> tuple[type[BaseException], ...]:
        if self._connection is None:
            return (OperationalError, BatchPublishError)
        transport = self._connection.transport
        return (OperationalError, BatchPublishError, *transport.connection_errors, *transport.channel_errors)

    def _send(self, batch: Sequence[Wakeup]) -> None:
        if self._producer is None:
            self._connection = self._app.connection_for_write()
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
        if len(batch) == 1:
            self._send_one(batch[0])
            return
        with self._producer.batch(max_size=BATCH_COMMANDS):
            for wakeup in batch:
                self._send_one(wakeup)

    def _send_one(self, wakeup: Wakeup) -> None:
        task_id = wakeup.task_id
        message = self._app.amqp.as_task_v2(
            task_id,
            TASK_NAME,
            args=(task_id,),
            argsrepr=repr((task_id,)),
            kwargsrepr="{}",
            shadow=wakeup.queue,  # Flower shows it as the task's name: the lane
            ignore_result=True,
            origin=self._origin,
        )
        self._producer.publish(
            message.body,
            exchange="",
            routing_key=wakeup.queue,
            priority=PRIORITY_STEPS[0],
            serializer="json",
            headers={**message.headers, **(wakeup.headers or {})},
            **message.properties,
        )

    def _disconnect(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with suppress(*connection.transport.connection_errors, OSError):
                connection.close()
