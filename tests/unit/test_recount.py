"""Telling lost messages from counts."""

from core.lanes import Lane, LengthClass, Priority
from core.recount import missing_messages

A = Lane("m", LengthClass.SHORT, Priority.BATCH)
B = Lane("m", LengthClass.LONG, Priority.BATCH)


def test_nothing_is_missing_when_the_queues_hold_what_waits() -> None:
    assert missing_messages({A: 5, B: 1}, {A.queue: 5, B.queue: 1}, held=0, running=0) == {}


def test_an_emptied_broker_lacks_everything() -> None:
    assert missing_messages({A: 5, B: 1}, {}, held=0, running=0) == {A: 5, B: 1}


def test_messages_that_workers_hold_unclaimed_are_not_missing() -> None:
    assert missing_messages({A: 5}, {A.queue: 3}, held=12, running=10) == {}
    assert missing_messages({A: 5}, {A.queue: 2}, held=12, running=10) == {A: 3}


def test_more_messages_than_tasks_are_duplicates_and_no_loss() -> None:
    assert missing_messages({A: 5, B: 2}, {A.queue: 9, B.queue: 2}, held=0, running=0) == {}


def test_a_lane_that_waits_with_an_empty_queue_lacks_its_messages_whoever_is_said_to_hold_some() -> None:
    assert missing_messages({A: 5, B: 3}, {B.queue: 2}, held=40, running=0) == {A: 5}
