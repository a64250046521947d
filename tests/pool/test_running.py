"""What a task sees and how it ends."""

from tests.pool.lab import Lab, wait_until


def test_an_async_task_runs_and_its_message_is_acked(lab: Lab) -> None:
    """Row 13: a coroutine runs; the stock pools never await one."""
    lab.start_worker()
    task_id = lab.publish()
    lab.wait_event("finished", task_id)
    lab.wait_unacked(0)
    assert lab.queued() == 0


def test_as_many_tasks_as_the_concurrency_run_at_once_in_one_process(lab: Lab) -> None:
    worker = lab.start_worker(concurrency=5)
    ids = [lab.publish({"do": "hold"}) for _ in range(8)]
    wait_until("5 started", lambda: len(lab.events("started")) == 5)
    assert {row[2]["os_pid"] for row in lab.events("started")} == {worker.process.pid}
    assert lab.unacked() == 5
    assert lab.queued() == 3
    lab.release()
    wait_until("all finished", lambda: {row[1] for row in lab.events("finished")} == set(ids))
    lab.wait_unacked(0)
