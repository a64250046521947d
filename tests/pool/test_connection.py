"""What a lost connection to the broker does."""

import signal

import pytest

from storage.broker import Wakeup
from tests.pool.lab import QUEUE, Lab, wait_until


def test_running_tasks_go_on_over_a_lost_connection_and_their_copies_stay_where_they_are(lab: Lab) -> None:
    """Row 1: the broker puts back what still runs, and no worker without a slot takes it."""
    worker = lab.start_worker(concurrency=2)
    ids = [lab.publish({"do": "hold"}) for _ in range(2)]
    wait_until("2 started", lambda: len(lab.events("started")) == 2)
    lab.cut_connections()
    info = wait_until("it answers again", lambda: lab.pool_info(worker))
    assert (info["running"], info["waiting"]) == (2, 0)
    assert (lab.queued(), lab.unacked()) == (2, 0)
    assert len(lab.events("started")) == 2
    lab.release()
    wait_until("all finished", lambda: {row[1] for row in lab.events("finished")} == set(ids))
    lab.wait_unacked(0)
    wait_until("queue empty", lambda: lab.queued() == 0)
    lab.wait_unacked(0)


@pytest.mark.parametrize(("plan", "cancelled"), [("hold", 2), ("hold the first time", 1)])
def test_a_revoke_finds_a_task_that_was_redelivered_while_it_runs(
    lab: Lab, plan: str, cancelled: int
) -> None:
    lab.start_worker(concurrency=2)
    task_id = lab.publish({"do": plan})
    lab.wait_event("started", task_id)
    lab.cut_connections()
    wait_until("the copy started", lambda: len(lab.events("started", task_id)) == 2)
    if cancelled == 1:
        lab.wait_event("finished", task_id)
        lab.wait_unacked(0)
    lab.app.control.revoke(task_id, terminate=True)
    wait_until("cancelled", lambda: len(lab.events("cancelled", task_id)) == cancelled)
    lab.wait_unacked(0)
    assert lab.queued() == 0
    lab.wait_event("finished", lab.publish())


def test_the_full_concurrency_is_back_after_a_reconnect(lab: Lab) -> None:
    worker = lab.start_worker(concurrency=4)
    for _ in range(3):
        lab.publish({"do": "hold"})
    wait_until("3 started", lambda: len(lab.events("started")) == 3)
    lab.cut_connections()
    wait_until("it answers again", lambda: lab.pool_info(worker))
    lab.release()
    wait_until("copies ran", lambda: len(lab.events("finished")) >= 6 and lab.unacked() + lab.queued() == 0)
    lab.probe.delete("probe:released", "probe:events")
    for _ in range(6):
        lab.publish({"do": "hold"})
    wait_until("4 started", lambda: len(lab.events("started")) == 4)
    assert lab.unacked() == 4
    lab.release()
    lab.wait_unacked(0)


def test_a_worker_survives_three_restarts_of_the_broker(durable_lab: Lab) -> None:
    """Row 15."""
    lab = durable_lab
    lab.start_worker(concurrency=2)
    for _ in range(3):
        running = lab.publish({"do": "hold"})
        lab.wait_event("started", running)
        lab.server.stop()
        lab.server.start()
        lab.release(running)
        lab.wait_event("finished", running)
        lab.wait_event("finished", lab.publish())
    assert lab.workers[0].process.poll() is None


def test_a_paused_worker_consumes_nothing_even_after_a_reconnect(lab: Lab) -> None:
    worker = lab.start_worker(concurrency=3)
    pausing = lab.publish({"do": "pause consuming"})
    lab.wait_event("started", pausing)
    lab.wait_no_brpop()
    waiting = lab.publish()
    lab.cut_connections()
    assert wait_until("it answers again", lambda: lab.pool_info(worker))["paused"] is True
    assert lab.queued() == 2  # the pausing task's own copy was put back when its connection broke
    lab.release()
    lab.wait_event("finished", waiting)
    lab.wait_unacked(0)


@pytest.mark.parametrize("count", [1, 3])
def test_publishing_works_again_after_a_cut_connection(lab: Lab, count: int) -> None:
    wakeups = [Wakeup(QUEUE, f"task-{number}") for number in range(count)]
    assert lab.publisher.publish_many(wakeups) == count
    lab.broker.client_kill_filter(_type="normal", skipme=True)
    assert lab.publisher.publish_many(wakeups) == count
    assert lab.queued() == 2 * count


@pytest.mark.parametrize("first", ["the broker", "the worker"])
def test_a_worker_drains_and_ends_while_the_broker_is_away(durable_lab: Lab, first: str) -> None:
    """Told to stop before the broker goes, it learns that by the ack that fails."""
    lab = durable_lab
    worker = lab.start_worker(concurrency=2)
    running = lab.publish({"do": "hold"})
    lab.wait_event("started", running)
    if first == "the broker":
        lab.server.stop()
    worker.send(signal.SIGTERM)
    lab.wait_event("draining")
    if first == "the worker":
        lab.server.stop()
    lab.release(running)
    lab.wait_event("finished", running)
    assert worker.exit_code() == 0
