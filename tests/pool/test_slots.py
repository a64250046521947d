"""Who gets the slots: what is taken from the broker, and who yields."""

import signal

from core.lanes import lanes_of
from tests.pool.lab import Lab, wait_until
from workers.lane_cycle import PATIENCE

QUEUES = [lane.queue for lane in lanes_of("demo")]
INTERACTIVE, STANDARD, BATCH = "demo.short.interactive", "demo.short.standard", "demo.short.batch"
FAST_RESTORE = {"unacked_restore_interval": 1}


def started(lab: Lab) -> list[str]:
    return [row[1] for row in lab.events("started")]


def test_batch_work_leaves_the_reserved_slot_and_an_interactive_message_starts_in_it(lab: Lab) -> None:
    lab.start_worker(concurrency=4, reserved=1, queues=QUEUES)
    for _ in range(10):
        lab.publish({"do": "hold"}, queue=BATCH)
    wait_until("3 started", lambda: len(started(lab)) == 3)
    lab.wait_brpop()
    assert (lab.unacked(), lab.queued(BATCH)) == (3, 7), "nothing is taken that can't start"
    person = lab.publish({"do": "hold"}, queue=INTERACTIVE)
    lab.wait_event("started", person)
    assert started(lab)[3:] == [person]
    lab.release()
    wait_until("all finished", lambda: len(lab.events("finished")) == 11)
    lab.wait_unacked(0)


def test_a_slot_that_becomes_free_is_filled_while_the_worker_waits_for_interactive_work(lab: Lab) -> None:
    lab.start_worker(concurrency=3, reserved=1, queues=QUEUES)
    ids = [lab.publish({"do": "hold"}, queue=BATCH) for _ in range(4)]
    wait_until("2 started", lambda: len(started(lab)) == 2)
    lab.wait_brpop()
    lab.release(started(lab)[0])
    wait_until("the third started", lambda: len(started(lab)) == 3)
    lab.release()
    wait_until("all finished", lambda: {row[1] for row in lab.events("finished")} == set(ids))


def test_interactive_work_leaves_one_slot_to_the_rest(lab: Lab) -> None:
    lab.start_worker(concurrency=4, reserved=2, queues=QUEUES)
    for _ in range(6):
        lab.publish({"do": "hold"}, queue=INTERACTIVE)
    wait_until("3 started", lambda: len(started(lab)) == 3)
    last = lab.publish({"do": "hold"}, queue=BATCH)
    lab.wait_event("started", last)
    assert lab.queued(INTERACTIVE) == 3
    lab.release()
    wait_until("all finished", lambda: len(lab.events("finished")) == 7)


def test_a_ceiling_keeps_long_work_from_filling_the_slots(lab: Lab) -> None:
    lab.start_worker(concurrency=4, ceilings={"long": 2}, queues=QUEUES)
    for _ in range(4):
        lab.publish({"do": "hold"}, queue="demo.long.standard")
    wait_until("2 started", lambda: len(started(lab)) == 2)
    short = [lab.publish({"do": "hold"}, queue=STANDARD) for _ in range(2)]
    wait_until("4 started", lambda: set(started(lab)[2:]) == set(short))
    assert lab.queued("demo.long.standard") == 2
    lab.release()
    wait_until("all finished", lambda: len(lab.events("finished")) == 6)


def test_the_lowest_lane_has_a_bounded_wait(lab: Lab) -> None:
    for _ in range(3 * PATIENCE):
        lab.publish(queue=STANDARD)
    lowest = lab.publish(queue="demo.long.batch")
    lab.start_worker(concurrency=1, queues=QUEUES)
    wait_until("all finished", lambda: len(lab.events("finished")) == 3 * PATIENCE + 1)
    assert started(lab).index(lowest) == PATIENCE


def test_a_batch_task_yields_to_a_person_and_gets_the_next_free_slot(lab: Lab) -> None:
    lab.start_worker(concurrency=4, reserved=1, max_preemptions=3, queues=QUEUES)
    cheap = lab.publish({"do": "hold and yield", "tokens": 5}, queue=BATCH)
    dear = [lab.publish({"do": "hold and yield", "tokens": 900}, queue=BATCH) for _ in range(2)]
    wait_until("3 started", lambda: len(started(lab)) == 3)
    waiting = lab.publish({"do": "hold"}, queue=BATCH)
    people = [lab.publish({"do": "hold"}, queue=INTERACTIVE) for _ in range(2)]
    wait_until("both started", lambda: set(started(lab)[3:]) == set(people))
    lab.wait_event("yielded", cheap)  # the slot is used at once: who gave it says so when its turn comes
    assert [row[1] for row in lab.events("yielded")] == [cheap]
    assert not lab.events("regained")
    lab.release(people[0])
    lab.release(people[1])
    lab.wait_event("regained", cheap)
    assert waiting not in started(lab), "what yielded goes before what has not begun"
    lab.release()
    wait_until("all finished", lambda: len(lab.events("finished")) == 6)
    assert len(started(lab)) == 6
    assert set(dear) == {row[1] for row in lab.events("finished")} & set(dear)
    lab.wait_unacked(0)


def test_a_task_yields_no_more_often_than_it_must(lab: Lab) -> None:
    worker = lab.start_worker(concurrency=2, reserved=1, max_preemptions=1, queues=QUEUES)
    task = lab.publish({"do": "hold and yield"}, queue=BATCH)
    lab.wait_event("started", task)
    for round_ in range(1, 3):
        people = [lab.publish({"do": "hold"}, queue=INTERACTIVE) for _ in range(2)]
        wait_until("a person started", lambda: set(started(lab)) & set(people))  # noqa: B023
        if round_ == 1:
            lab.wait_event("yielded", task)
            wait_until("the other too", lambda: set(people) <= set(started(lab)))  # noqa: B023
        else:
            wait_until("one waits", lambda: lab.pool_info(worker).get("waiting") == 1)
            assert len(set(people) & set(started(lab))) == 1
        for person in people:
            lab.release(person)
        wait_until("they ended", lambda: set(people) <= {row[1] for row in lab.events("finished")})  # noqa: B023
        lab.wait_event("regained", task)
    assert len(lab.events("yielded")) == 1
    lab.release()
    lab.wait_event("finished", task)


def test_nothing_is_lost_when_a_worker_is_killed_while_a_task_has_yielded(lab: Lab) -> None:
    options = {"visibility_timeout_s": 1, "transport": FAST_RESTORE, "queues": QUEUES}
    killed = lab.start_worker(concurrency=2, reserved=1, max_preemptions=1, **options)
    ids = [lab.publish({"do": "hold and yield"}, queue=BATCH)]
    lab.wait_event("started", ids[0])
    ids += [lab.publish({"do": "hold"}, queue=INTERACTIVE) for _ in range(2)]
    wait_until("all started", lambda: len(started(lab)) == 3)
    lab.wait_event("yielded", ids[0])
    killed.send(signal.SIGKILL)
    killed.exit_code()
    lab.release()
    heir = lab.start_worker(concurrency=2, reserved=1, **options)
    for task_id in ids:
        lab.wait_event("finished", task_id, worker=heir.options.name)
    lab.wait_unacked(0)
    assert sum(map(lab.queued, QUEUES)) == 0


def test_a_drain_puts_back_what_has_yielded_at_once(lab: Lab) -> None:
    worker = lab.start_worker(concurrency=2, reserved=1, max_preemptions=1, queues=QUEUES)
    task = lab.publish({"do": "hold and yield"}, queue=BATCH)
    lab.wait_event("started", task)
    people = [lab.publish({"do": "hold"}, queue=INTERACTIVE) for _ in range(2)]
    lab.wait_event("yielded", task)
    wait_until("both started", lambda: len(started(lab)) == 3)
    worker.send(signal.SIGTERM)
    assert lab.wait_event("cancelled", task)[2] == "drain"
    for person in people:
        lab.release(person)
    assert worker.exit_code() == 0
    assert lab.queued(BATCH) == 1


def test_a_cancellation_that_was_swallowed_is_repeated(lab: Lab) -> None:
    """On Python 3.11 `asyncio.wait_for`, and so redis-py and asyncpg, can lose one."""
    lab.start_worker(concurrency=1)
    task = lab.publish({"do": "miss a cancellation"})
    lab.wait_event("started", task)
    lab.app.control.revoke(task, terminate=True)
    lab.wait_event("missed", task)
    assert lab.wait_event("cancelled", task)[2] == "terminate"
    lab.wait_unacked(0)
    lab.wait_event("finished", lab.publish())


def test_a_lane_with_a_channel_of_its_own_can_be_cancelled_and_added_by_remote_control(lab: Lab) -> None:
    lab.start_worker(concurrency=2, reserved=1, queues=QUEUES)
    lab.app.control.cancel_consumer(INTERACTIVE, reply=True)
    person = lab.publish(queue=INTERACTIVE)
    lab.wait_event("finished", lab.publish(queue=BATCH))
    assert lab.queued(INTERACTIVE) == 1
    lab.app.control.add_consumer(INTERACTIVE, reply=True)
    lab.wait_event("finished", person)
