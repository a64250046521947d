"""What a task sees and how it ends."""

import pytest

from storage.broker import TASK_NAME
from tests.pool.lab import QUEUE, Lab, wait_until


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


def test_each_coroutine_sees_its_own_request_and_context_variables(lab: Lab) -> None:
    lab.start_worker(concurrency=8)
    ids = [lab.publish({"do": "hold"}) for _ in range(8)]
    wait_until("8 started", lambda: len(lab.events("started")) == 8)
    lab.release()
    wait_until("8 finished", lambda: len(lab.events("finished")) == 8)
    seen = {row[1]: row[2] for row in lab.events("finished")}
    assert seen == {one: {"label": one, "request": one, "inner": [one, one]} for one in ids}


@pytest.mark.parametrize("verb", ["fail", "cancel itself", "exit"])
def test_a_task_that_breaks_is_acked_and_the_worker_goes_on(lab: Lab, verb: str) -> None:
    lab.start_worker(concurrency=1)
    lab.publish({"do": verb})
    lab.wait_event("finished", lab.publish())
    lab.wait_unacked(0)
    assert lab.queued() == 0


def test_queues_are_read_in_the_order_they_were_declared(lab: Lab) -> None:
    high, low = "demo.short.interactive", "demo.short.batch"
    later = [lab.publish(queue=low) for _ in range(5)]
    first = [lab.publish(queue=high) for _ in range(5)]
    lab.start_worker(concurrency=1, queues=[high, low])
    wait_until("all finished", lambda: len(lab.events("finished")) == 10)
    assert [row[1] for row in lab.events("started")] == first + later


def test_every_priority_is_consumed(lab: Lab) -> None:
    """Row 17: publishers and workers share one set of priority steps."""
    lab.start_worker()
    producer = lab.app.amqp.Producer(lab.app.connection_for_write(), auto_declare=False)
    for priority in range(10):
        task_id = f"priority-{priority}"
        message = lab.app.amqp.as_task_v2(task_id, TASK_NAME, args=(task_id,))
        producer.publish(
            message.body, exchange="", routing_key=QUEUE, priority=priority, serializer="json",
            headers=message.headers, **message.properties,
        )  # fmt: skip
    wait_until("10 finished", lambda: len(lab.events("finished")) == 10)


def test_delayed_messages_do_not_raise_what_a_worker_holds(lab: Lab) -> None:
    """Row 18: 200 messages with a countdown, a limit of 10."""
    producer = lab.app.amqp.Producer(lab.app.connection_for_write(), auto_declare=False)
    for number in range(200):
        message = lab.app.amqp.as_task_v2(
            f"later-{number}", TASK_NAME, args=(f"later-{number}",), countdown=600
        )
        producer.publish(
            message.body, exchange="", routing_key=QUEUE, serializer="json",
            headers=message.headers, **message.properties,
        )  # fmt: skip
    lab.start_worker(concurrency=2, conf={"worker_eta_task_limit": 10})
    lab.wait_unacked(10)
    wait_until("the rest stays", lambda: lab.queued() == 190)
    assert lab.unacked() == 10


def test_a_pickled_message_is_thrown_away_unread(lab: Lab) -> None:
    """Row 30: any writer to the broker could run code in the worker."""
    lab.start_worker()
    producer = lab.app.amqp.Producer(lab.app.connection_for_write(), auto_declare=False)
    message = lab.app.amqp.as_task_v2("pickled", TASK_NAME, args=("pickled",))
    producer.publish(
        message.body, exchange="", routing_key=QUEUE, serializer="pickle",
        headers=message.headers, **message.properties,
    )  # fmt: skip
    lab.wait_event("finished", lab.publish())
    lab.wait_unacked(0)
    assert not lab.events("started", "pickled")
    assert lab.queued() == 0
