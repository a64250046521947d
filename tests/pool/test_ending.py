"""Cancellation: revokes and time limits."""

import time

from tests.pool.lab import Lab, wait_until


def test_a_revoke_with_terminate_stops_a_running_task_within_a_second(lab: Lab) -> None:
    """Row 12: the threads pool ignores it. Flower's button sends the same."""
    lab.start_worker()
    task_id = lab.publish({"do": "hold"})
    lab.wait_event("started", task_id)
    asked = time.monotonic()
    lab.app.control.revoke(task_id, terminate=True)
    assert lab.wait_event("cancelled", task_id)[2] == "terminate"
    assert time.monotonic() - asked < 1.0
    lab.wait_unacked(0)
    assert lab.queued() == 0
    lab.wait_event("finished", lab.publish())


def test_a_terminated_task_that_returns_is_acked_too(lab: Lab) -> None:
    lab.start_worker()
    task_id = lab.publish({"do": "hold", "swallow": True})
    lab.wait_event("started", task_id)
    lab.app.control.revoke(task_id, terminate=True)
    lab.wait_event("cancelled", task_id)
    lab.wait_unacked(0)
    assert lab.queued() == 0


def test_a_revoked_task_that_waits_in_the_queue_never_starts(lab: Lab) -> None:
    lab.start_worker(concurrency=1)
    lab.wait_event("started", lab.publish({"do": "hold"}))
    waiting = lab.publish()
    lab.app.control.revoke(waiting, terminate=True, reply=True)
    lab.release()
    lab.wait_unacked(0)
    lab.wait_event("finished", lab.publish())
    assert not lab.events("started", waiting)


def test_the_hard_time_limit_cancels_and_acks(lab: Lab) -> None:
    """Row 12: the threads pool ignores it."""
    lab.start_worker(conf={"task_time_limit": 1})
    task_id = lab.publish({"do": "hold"})
    assert lab.wait_event("cancelled", task_id)[2] == "hard"
    lab.wait_unacked(0)
    assert lab.queued() == 0


def test_the_soft_time_limit_raises_in_the_task(lab: Lab) -> None:
    """Row 12: the threads pool ignores it."""
    lab.start_worker(conf={"task_soft_time_limit": 1, "task_time_limit": 30})
    task_id = lab.publish({"do": "hold"})
    lab.wait_event("soft", task_id)
    lab.wait_unacked(0)
    assert not lab.events("cancelled", task_id)
    assert lab.queued() == 0


def test_one_slot_is_free_again_after_each_way_to_end(lab: Lab) -> None:
    lab.start_worker(concurrency=1, conf={"task_time_limit": 1})
    for plan in ({"do": "hold"}, {"do": "fail"}, {"do": "cancel itself"}, None):
        lab.publish(plan)
    last = lab.publish()
    lab.wait_event("finished", last)
    lab.wait_unacked(0)
    wait_until("all started", lambda: len(lab.events("started")) == 5)
