"""Messages that the Redis transport would lose, double or strand."""

import signal

import pytest

from storage.broker import Wakeup
from tests.pool.lab import QUEUE, UNACKED, Lab, wait_until

FAST_RESTORE = {"unacked_restore_interval": 1}


@pytest.mark.parametrize(
    ("visibility_timeout_s", "task_s"), [(1, 3), pytest.param(2, 7, marks=pytest.mark.full)]
)
def test_a_task_longer_than_the_visibility_timeout_starts_once(
    lab: Lab, visibility_timeout_s: int, task_s: int
) -> None:
    """Row 3: without the heartbeat of held tags, 7 s under a timeout of 2 s start four times."""
    for _ in range(2):
        lab.start_worker(visibility_timeout_s=visibility_timeout_s, transport=FAST_RESTORE)
    task_id = lab.publish({"do": "sleep", "s": task_s})
    lab.wait_event("finished", task_id, timeout_s=task_s + 5)
    lab.wait_unacked(0)
    assert len(lab.events("started", task_id)) == 1


def test_a_long_task_is_not_redelivered_while_its_worker_drains(lab: Lab) -> None:
    """Row 3, through a warm drain."""
    first = lab.start_worker(visibility_timeout_s=1, transport=FAST_RESTORE)
    task_id = lab.publish({"do": "sleep", "s": 3})
    lab.wait_event("started", task_id)
    lab.start_worker(visibility_timeout_s=1, transport=FAST_RESTORE)
    first.send(signal.SIGTERM)
    assert first.exit_code() == 0
    lab.wait_event("finished", task_id)
    assert len(lab.events("started", task_id)) == 1
    assert lab.unacked() + lab.queued() == 0


@pytest.mark.full
def test_without_the_heartbeat_a_long_task_starts_again(lab: Lab) -> None:
    """Row 3: what the step is for; if this fails, kombu learned it and the step can go."""
    options = {"visibility_timeout_s": 1, "transport": FAST_RESTORE, "without_step": "HeldTagHeartbeat"}
    for _ in range(2):
        lab.start_worker(**options)
    task_id = lab.publish({"do": "hold"})
    wait_until("a second start", lambda: len(lab.events("started", task_id)) > 1)


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.full)])
def test_a_message_published_while_the_worker_stops_survives_its_sigkill(lab: Lab, rounds: int) -> None:
    """Row 8: the BRPOP in flight pops it, and its reply lay unread in the socket."""
    for _ in range(rounds):
        stopping = lab.start_worker()
        lab.wait_event("started", lab.publish({"do": "hold"}), worker=stopping.options.name)
        lab.wait_brpop()
        stopping.send(signal.SIGTERM)
        lab.wait_event("draining", worker=stopping.options.name)
        task_id = lab.publish()
        lab.wait_no_brpop()
        wait_until("the message is back", lambda: lab.queued() == 1)
        stopping.send(signal.SIGKILL)
        stopping.exit_code()
        heir = lab.start_worker()
        lab.wait_event("finished", task_id, worker=heir.options.name)
        heir.send(signal.SIGTERM)
        assert heir.exit_code() == 0


def test_a_killed_workers_message_runs_elsewhere_without_any_binding_table(lab: Lab) -> None:
    """Rows 4 and 7: restoring needs nothing but the default exchange, and seconds."""
    killed = lab.start_worker()
    task_id = lab.publish({"do": "hold"})
    lab.wait_event("started", task_id)
    killed.send(signal.SIGKILL)
    killed.exit_code()
    for key in lab.broker.scan_iter("hr:q:_kombu.binding.*"):
        lab.broker.delete(key)
    lab.release()
    heir = lab.start_worker(visibility_timeout_s=1, transport=FAST_RESTORE)
    lab.wait_event("finished", task_id, worker=heir.options.name)
    lab.wait_unacked(0)


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.full)])
def test_a_cancelled_queue_loses_nothing(lab: Lab, rounds: int) -> None:
    """Row 19: what its BRPOP in flight still pops is put back."""
    lab.start_worker(queues=[QUEUE, "demo.short.batch"])
    for _ in range(rounds):
        lab.wait_brpop()
        lab.app.control.cancel_consumer(QUEUE, reply=True)
        ids = [lab.publish() for _ in range(3)]
        lab.app.control.add_consumer(QUEUE, reply=True)
        for task_id in ids:
            lab.wait_event("finished", task_id)
    lab.wait_unacked(0)


def test_a_message_is_small_and_carries_the_id_only(lab: Lab) -> None:
    """Row 25: kombu copies the body, base64'd, into the unacked hash too."""
    task_id = "0190a0b0-0000-7000-8000-000000000000"
    lab.publisher.publish(Wakeup(QUEUE, task_id, {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}))
    raw = lab.broker.lindex(f"hr:q:{QUEUE}", 0)
    assert len(raw) < 2048
    lab.start_worker(concurrency=1)
    assert lab.wait_event("started", task_id)[2]["traceparent"].startswith("00-aaa")
    assert lab.events("started", task_id)[0][2]["queue"] == QUEUE
    held = lab.publish({"do": "hold"})
    lab.wait_event("started", held)
    assert all(len(value) < 4096 for value in lab.broker.hvals(UNACKED))
