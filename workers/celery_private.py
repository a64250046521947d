"""The one place that touches names which celery and kombu do not promise to keep.

`verify` is called when the pool starts, so that an upgrade which moves one of them stops the worker with
its name instead of losing messages quietly.
"""

from collections.abc import Callable, Hashable, Iterator
from queue import Empty
from typing import Any

from celery import Celery, _state
from celery.app.task import Task
from celery.concurrency import prefork
from celery.utils import log, threads
from celery.worker import state as worker_state
from kombu.transport import redis as redis_transport
from kombu.transport import virtual

EX_FAILURE = 1
BRPOP_S = 0.25  # a queue that may be asked again waits this long for one that is asked; so does a stop


class CeleryChangedError(RuntimeError):
    """An installed celery or kombu lacks a private name that the pool relies on."""


def verify() -> None:
    """Check every private name used here. Raises: CeleryChangedError naming those that moved."""
    moved = [name for name, present in _private_names() if not present]
    if moved:
        names = ", ".join(moved)
        raise CeleryChangedError(f"celery or kombu changed: no {names}; see workers/celery_private.py")


def _private_names() -> Iterator[tuple[str, bool]]:
    channel, qos = redis_transport.Channel, redis_transport.QoS
    owners: list[tuple[str, Any, list[str]]] = [
        ("celery.concurrency.prefork", prefork, ["_run_ready_callbacks"]),
        ("celery.utils.log", log, ["_in_sighandler"]),
        ("celery.utils.threads", threads, ["get_ident"]),
        ("celery.worker.state", worker_state, ["should_stop", "should_terminate", "maybe_shutdown"]),
        ("kombu.transport.redis.Channel", channel, ["_brpop_read", "_in_poll", "active_queues"]),
        (
            "kombu.transport.redis.Channel",
            channel,
            ["unacked_index_key", "conn_or_acquire", "_create_client"],
        ),
        ("kombu.transport.redis.Channel", channel, ["_update_queue_cycle"]),
        (
            "kombu.transport.redis.QoS",
            qos,
            ["_delivered", "_dirty", "restore_by_tag", "restore_unacked_once"],
        ),
        ("kombu.transport.virtual.Transport", virtual.Transport, ["_callbacks"]),
    ]
    for path, owner, names in owners:
        yield from ((f"{path}.{name}", hasattr(owner, name)) for name in names)
    # Set per instance: only the code that sets it can be asked
    yield "kombu.transport.virtual.Channel._qos", "_qos" in virtual.Channel.__init__.__code__.co_names
    yield "kombu.transport.redis.Channel._queue_cycle", "_queue_cycle" in channel.__init__.__code__.co_names
    yield "celery._state._task_stack.__ident_func__", _is_keyed(getattr(_state, "_task_stack", None))
    yield "celery.Task.request_stack", hasattr(Task, "request_stack")


def key_stacks_by(app: Celery, ident: Callable[[], Hashable]) -> None:
    """Key `current_task` and every task's `request` by this function instead of by thread.

    Raises: CeleryChangedError.
    """
    tasks: list[Task] = list(app.tasks.values())
    stacks = [_state._task_stack, *(task.request_stack for task in tasks)]
    for stack in stacks:
        if not _is_keyed(stack):
            raise CeleryChangedError(f"celery changed: {type(stack).__name__} has no __ident_func__")
        stack.__ident_func__ = ident


def thread_ident() -> Hashable:
    """What celery keys its stacks by of itself."""
    ident: Hashable = threads.get_ident()
    return ident


def run_ready_acks(hub: Any) -> None:
    """Send the acks and rejects that callbacks queued on the hub; a hub thread only."""
    prefork._run_ready_callbacks(hub)


def in_signal_handler() -> bool:
    """Whether celery's shutdown handler runs above us on this thread's stack."""
    return bool(log._in_sighandler)


def cold_shutdown_requested() -> bool:
    """Whether the worker was told not to wait for its tasks (SIGQUIT, or a second SIGINT)."""
    return worker_state.should_terminate not in (None, False)


def raise_if_stopping() -> None:
    """Raise celery's own SystemExit when a shutdown signal arrived."""
    worker_state.maybe_shutdown()


def request_stop() -> None:
    """Have the worker drain and end with a failure code."""
    if worker_state.should_stop in (None, False):
        worker_state.should_stop = EX_FAILURE


def find_again(on_accepted: Any) -> None:
    """Let remote control find the request of this callback by its task id, if it finds none."""
    request = on_accepted.__self__
    worker_state.requests.setdefault(request.id, request)


def queue_of(arguments: Any) -> str:
    """The queue that a message came from. `arguments`: of celery's tracer."""
    _, _, request, *_ = arguments
    return str(request["delivery_info"]["routing_key"])


def task_consumers(consumer: Any) -> list[Any]:
    """What takes task messages over the current connection: celery's own, and `workers.bootsteps`'s."""
    both = (getattr(consumer, name, None) for name in ("task_consumer", "interactive_consumer"))
    return [one for one in both if one]


def order_queues_by(channel: Any, cycle: Any) -> None:
    """Have this cycle choose the queues of the channel's next BRPOPs."""
    channel._queue_cycle = cycle
    channel.brpop_timeout = BRPOP_S
    channel._update_queue_cycle()


def held_tags(channel: Any) -> list[str]:
    """Delivery tags that the channel holds unacked."""
    if channel is None or channel._qos is None:
        return []
    return [tag for tag in list(channel.qos._delivered) if tag not in channel.qos._dirty]


def refresh_held(channel: Any, now: float) -> int:
    """Restart the visibility timeout of every held tag; `now` is wall-clock time, as kombu writes it.

    XX: a tag acked meanwhile must not come back.
    """
    tags = held_tags(channel)
    if tags:
        with channel.conn_or_acquire() as client:
            client.zadd(channel.unacked_index_key, dict.fromkeys(tags, now), xx=True)
    return len(tags)


def cancel_and_read_pending(consumer: Any) -> None:
    """Cancel a task consumer and put what its BRPOP in flight still pops back to the queue's head.

    Blocks until the reply, at most BRPOP_S. Without this the reply lies in the
    socket, where nobody finds it after a SIGKILL.
    """
    channel = consumer.channel
    queues = channel.active_queues
    consumer.cancel()
    if not channel._in_poll:
        return
    callbacks = channel.connection._callbacks
    for queue in queues:
        callbacks[queue] = lambda raw: _put_back(channel, raw)
    try:
        channel._brpop_read()
    except Empty:
        pass
    finally:
        for queue in queues:
            callbacks.pop(queue, None)


def restore_held(channel: Any) -> int:
    """Put every held message back to its queue's head; the channel must consume no more.

    Without a broker the connection's error is raised, and the messages are the broker's to redeliver: kombu
    would find them when the channel closes, and end the worker by an AssertionError.
    """
    held = len(held_tags(channel))
    if held:
        try:
            channel.qos.restore_unacked_once()
        finally:
            channel.qos._delivered.clear()
    return held


def _put_back(channel: Any, raw: Any) -> None:
    message = channel.Message(raw, channel=channel)
    tag = message.delivery_tag
    channel.qos.append(message, tag)
    channel.qos.restore_by_tag(tag)
    channel.qos._delivered.pop(tag, None)


def _is_keyed(stack: Any) -> bool:
    return isinstance(getattr(type(stack), "__ident_func__", None), property)
