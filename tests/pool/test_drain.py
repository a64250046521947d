"""How a worker stops."""

import signal

from tests.pool.lab import Lab, wait_until


def test_acks_are_sent_while_the_pool_drains(lab: Lab) -> None:
    """Rows 10 and 11: on SIGTERM running tasks finish, and each one's message goes as it ends."""
    worker = lab.start_worker(concurrency=4)
    ids = [lab.publish({"do": "hold"}) for _ in range(4)]
    wait_until("4 started", lambda: len(lab.events("started")) == 4)
    worker.send(signal.SIGTERM)
    lab.wait_event("draining")
    for left, task_id in enumerate(reversed(ids)):
        lab.wait_unacked(4 - left)
        lab.release(task_id)
        lab.wait_event("finished", task_id)
        lab.wait_unacked(3 - left)
    assert worker.exit_code() == 0
    assert len(lab.events("finished")) == 4
    assert lab.queued() == 0


def test_a_draining_worker_takes_nothing_new(lab: Lab) -> None:
    worker = lab.start_worker(concurrency=2)
    running = lab.publish({"do": "hold"})
    lab.wait_event("started", running)
    worker.send(signal.SIGTERM)
    lab.wait_event("draining")
    later = lab.publish()
    other = lab.start_worker()
    lab.wait_event("finished", later, worker=other.options.name)
    lab.release()
    assert worker.exit_code() == 0
    assert not lab.events("started", later, worker=worker.options.name)


def test_a_task_beyond_the_drain_deadline_is_cancelled_and_runs_elsewhere(lab: Lab) -> None:
    first = lab.start_worker(drain_s=0.5)
    task_id = lab.publish({"do": "hold"})
    lab.wait_event("started", task_id)
    first.send(signal.SIGTERM)
    assert lab.wait_event("cancelled", task_id)[2] == "drain"
    assert first.exit_code() == 0
    assert lab.unacked() == 0
    assert lab.queued() == 1
    lab.release()
    second = lab.start_worker()
    lab.wait_event("finished", task_id, worker=second.options.name)


def test_a_drained_message_is_put_back_before_the_shutdown_hook_runs_and_at_the_head(lab: Lab) -> None:
    first = lab.start_worker(concurrency=1, drain_s=0.0)
    held = lab.publish({"do": "hold", "swallow": True})
    lab.wait_event("started", held)
    behind = lab.publish()
    first.send(signal.SIGTERM)
    lab.wait_event("shutdown")
    assert lab.queued() == 2
    assert first.exit_code() == 0
    lab.release()
    lab.start_worker(concurrency=1)
    lab.wait_event("finished", behind)
    assert [row[1] for row in lab.events("started")] == [held, held, behind]


def test_sigquit_cancels_at_once_and_keeps_the_messages(lab: Lab) -> None:
    worker = lab.start_worker(drain_s=60)
    task_id = lab.publish({"do": "hold"})
    lab.wait_event("started", task_id)
    worker.send(signal.SIGQUIT)
    assert lab.wait_event("cancelled", task_id)[2] == "drain"
    worker.exit_code()
    assert lab.queued() == 1


def test_sigquit_ends_a_drain_that_is_under_way(lab: Lab) -> None:
    worker = lab.start_worker(drain_s=60)
    task_id = lab.publish({"do": "hold"})
    lab.wait_event("started", task_id)
    worker.send(signal.SIGTERM)
    lab.wait_event("draining")
    worker.send(signal.SIGQUIT)
    assert lab.wait_event("cancelled", task_id)[2] == "drain"
    worker.exit_code()
    assert lab.queued() == 1


def test_nothing_is_consumed_before_startup_ended(lab: Lab) -> None:
    worker = lab.start_worker(ready=False, hang_startup=True)
    lab.publish()
    lab.wait_event("starting")
    assert lab.queued() == 1
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert lab.events("shutdown")
    assert lab.queued() == 1


def test_a_failed_startup_ends_the_worker_with_an_error(lab: Lab) -> None:
    worker = lab.start_worker(ready=False, fail_startup=True)
    assert worker.exit_code() != 0
    assert "the engine did not load" in worker.log.read_text()
    assert lab.events("shutdown")
