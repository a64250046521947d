"""The rules of slots: never more than there are, none idle that may be used, none waiting for ever."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.lanes import Lane, LengthClass, Priority
from core.slots import (
    Candidate,
    Kind,
    SlotRules,
    Tally,
    choose_victim,
    default_ceilings,
    default_reserved,
    makes_room,
    may_start,
)
from workers.lane_cycle import PATIENCE, LaneCycle

INTERACTIVE, STANDARD, BATCH = (Kind(priority, LengthClass.SHORT) for priority in Priority)
kinds = st.builds(Kind, st.sampled_from(Priority), st.sampled_from(LengthClass))


@st.composite
def rules(draw: st.DrawFn) -> SlotRules:
    total = draw(st.integers(1, 12))
    ceilings = draw(st.dictionaries(st.sampled_from(LengthClass), st.integers(1, 12)))
    return SlotRules(total, draw(st.integers(0, total - 1)), ceilings, draw(st.integers(0, 3)))


def fill(given_rules: SlotRules, arriving: list[Kind], batch_size: int | None) -> Counter[Kind]:
    held = Tally()
    for kind in arriving:
        if may_start(given_rules, held, kind, batch_size):
            held.add(kind)
    return Counter(held.kinds)


@given(rules(), st.lists(kinds, max_size=40), st.none() | st.integers(1, 12))
def test_no_bound_is_ever_exceeded(given_rules: SlotRules, arriving: list[Kind], size: int | None) -> None:
    held = fill(given_rules, arriving, size)
    by_priority, by_class = Counter[Priority](), Counter[LengthClass]()
    for kind, count in held.items():
        by_priority[kind.priority] += count
        by_class[kind.length_class] += count
    assert held.total() <= given_rules.total
    assert held.total() - by_priority[Priority.INTERACTIVE] <= given_rules.shared
    assert by_priority[Priority.INTERACTIVE] <= given_rules.total - given_rules.kept
    assert size is None or by_priority[Priority.BATCH] <= size
    assert all(by_class[name] <= ceiling for name, ceiling in given_rules.ceilings.items())


@given(rules(), st.lists(kinds, max_size=40))
def test_no_slot_stays_empty_that_its_kind_may_use(given_rules: SlotRules, arriving: list[Kind]) -> None:
    """Work conservation: enough work of one kind fills all that the rules leave to it."""
    held = fill(given_rules, arriving, None)
    for kind in (INTERACTIVE, STANDARD, BATCH):
        full = fill(given_rules, [*arriving, *[kind] * 20], None)
        most = given_rules.ceilings.get(LengthClass.SHORT, given_rules.total)
        short = sum(count for one, count in full.items() if one.length_class is LengthClass.SHORT)
        interactive = sum(count for one, count in full.items() if one.priority is Priority.INTERACTIVE)
        others = full.total() - interactive
        assert (
            full.total() == given_rules.total
            or short >= most
            or (kind is INTERACTIVE and interactive >= given_rules.total - given_rules.kept)
            or (kind is not INTERACTIVE and others >= given_rules.shared)
        ), (held, full)


@given(rules(), kinds)
def test_every_kind_may_start_on_an_empty_worker(given_rules: SlotRules, kind: Kind) -> None:
    assert may_start(given_rules, Tally(), kind, 1)


@given(rules())
def test_a_flood_of_one_priority_leaves_room_for_the_other_side(given_rules: SlotRules) -> None:
    if given_rules.ceilings or given_rules.total < 4:
        return
    others = fill(given_rules, [BATCH, STANDARD] * 20, None)
    assert may_start(given_rules, Tally(others), INTERACTIVE) == (given_rules.reserved > 0)
    people = fill(given_rules, [INTERACTIVE] * 20, None)
    assert may_start(given_rules, Tally(people), BATCH)


def candidate(key: str = "a", **changes: float) -> Candidate[str]:
    values: dict[str, float] = {
        "recompute_tokens": 100,
        "left_tokens": 50,
        "preemptions": 0,
        "ran_s": 60.0,
        "remaining_s": 3600.0,
        "token_s": 0.1,
    }
    return Candidate(key, BATCH, **{**values, **changes})  # type: ignore[arg-type]


RULES = SlotRules(8, 1, {}, max_preemptions=2)


def test_the_task_with_the_fewest_tokens_to_read_again_yields() -> None:
    chosen = choose_victim(
        RULES, [candidate("a"), candidate("b", recompute_tokens=99), candidate("c", left_tokens=10)]
    )
    assert chosen is not None and chosen.key == "b"


def test_of_equals_the_one_that_is_furthest_from_its_end_yields() -> None:
    chosen = choose_victim(RULES, [candidate("a", left_tokens=3), candidate("b", left_tokens=200)])
    assert chosen is not None and chosen.key == "b"


@pytest.mark.parametrize("change", [{"preemptions": 2}, {"ran_s": 1.0}, {"remaining_s": 9.0}])
def test_what_yielded_often_or_just_now_or_is_late_is_left_alone(change: dict[str, float]) -> None:
    assert choose_victim(RULES, [candidate(**change)]) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 20), st.floats(0, 20)), max_size=8))
def test_a_victim_is_never_over_its_bound(tasks: list[tuple[int, float, float]]) -> None:
    candidates = [
        candidate(str(number), preemptions=preemptions, ran_s=ran_s, remaining_s=remaining_s)
        for number, (preemptions, ran_s, remaining_s) in enumerate(tasks)
    ]
    chosen = choose_victim(RULES, candidates)
    allowed = [one for one in candidates if one.preemptions < 2 and one.ran_s >= 5 and one.remaining_s > 10]
    assert (chosen is None) == (not allowed)
    assert chosen is None or chosen in allowed


def test_only_who_makes_room_yields() -> None:
    given_rules = SlotRules(4, 1, {LengthClass.LONG: 1}, 1)
    long_batch, long_person = (Kind(p, LengthClass.LONG) for p in (Priority.BATCH, Priority.INTERACTIVE))
    held = Tally({long_batch: 1, BATCH: 1})
    assert makes_room(given_rules, held, long_batch, long_person)
    assert not makes_room(given_rules, held, BATCH, long_person)


@pytest.mark.parametrize("total", range(1, 100))
def test_a_default_share_is_reserved_and_leaves_slots_to_the_rest(total: int) -> None:
    reserved = default_reserved(total)
    assert reserved == SlotRules(total, reserved).reserved
    assert (reserved >= 1) == (total > 1)


def test_long_work_has_a_ceiling_unless_it_is_alone() -> None:
    assert default_ceilings(64, LengthClass) == {LengthClass.LONG: 32}
    assert default_ceilings(64, [LengthClass.LONG]) == {}
    assert default_ceilings(1, LengthClass) == {LengthClass.LONG: 1}


@pytest.mark.parametrize(("total", "reserved", "ceiling"), [(4, 4, 1), (4, -1, 1), (0, 0, 1), (4, 1, 0)])
def test_rules_that_leave_work_waiting_for_ever_are_refused(total: int, reserved: int, ceiling: int) -> None:
    with pytest.raises(ValueError):
        SlotRules(total, reserved, {LengthClass.LONG: ceiling})


QUEUES = [
    Lane("m", length_class, priority).queue
    for priority in (Priority.BATCH, Priority.STANDARD)
    for length_class in LengthClass
]


def served(cycle: LaneCycle, backlog: Counter[str]) -> Iterator[str]:
    """What a broker hands out: a message of the first queue asked for that has one."""
    while asked := cycle.consume(99):
        queue = next((queue for queue in asked if backlog[queue]), None)
        if queue is None:
            return
        backlog[queue] -= 1
        yield cycle.rotate(queue)


@given(st.sets(st.sampled_from(QUEUES), min_size=1))
def test_every_lane_with_work_is_served_within_a_bounded_number_of_starts(busy: set[str]) -> None:
    cycle = LaneCycle(lambda queue: True)
    cycle.update(QUEUES)
    order = list(served(cycle, Counter(dict.fromkeys(busy, 60))))
    bound = PATIENCE + len(QUEUES)
    for queue in busy:
        last = max(at for at, one in enumerate(order) if one == queue)
        places = [-1, *(at for at, one in enumerate(order[: last + 1]) if one == queue)]
        assert max(b - a for a, b in pairwise(places)) <= bound


def test_lanes_are_asked_in_the_order_of_service_and_only_where_work_may_start() -> None:
    cycle = LaneCycle(lambda queue: "long" not in queue)
    cycle.update(set(QUEUES))
    assert cycle.consume(99) == ["m.short.standard", "m.medium.standard", "m.medium.batch", "m.short.batch"]
