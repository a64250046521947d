"""What goes next: the rules of order, and what they promise whatever comes."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.fair_share import lift
from core.fleet import BURST, BURST_MOST, Fleet, Replica
from core.lanes import LengthClass, Priority
from core.order import EVERY, Head, Places, Turns, plan_fair, plan_fifo
from core.pace import Ended, Meter, Pace
from core.prefix import RUN, Streak, by_prefix, lengthen, prefix_key
from core.ranking import MOST_DELAY_S, STRETCH, rank_delay_s
from core.slots import Kind, SlotRules, format_ceilings, parse_ceilings

ALL = frozenset(LengthClass)


def head(
    name: str,
    *,
    tenant: str = "a",
    priority: Priority = Priority.STANDARD,
    length_class: LengthClass = LengthClass.SHORT,
    tokens: int = 100,
    rank: float = 0.0,
    age_s: float = 0.0,
    remaining_s: float = 1e9,
    needs_s: float = 0.0,
    prefix: int | None = None,
) -> Head:
    return Head(name, tenant, priority, length_class, tokens, rank, age_s, remaining_s, needs_s, prefix)


class Bare(Fleet):
    """Slots alone, with nothing ahead."""

    def _ahead(self, replica: Replica, priority: Priority) -> int:
        return 0


def fleet(slots: int, *, classes: frozenset[LengthClass] = ALL, ahead: bool = False) -> Fleet:
    replicas = [Replica("w1", classes, SlotRules(max(slots, 1)))]
    return Fleet(replicas) if ahead else Bare(replicas)


def names(
    heads: list[Head],
    slots: int = 100,
    *,
    counters: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    turns: Turns | None = None,
) -> list[str]:
    plan = plan_fair(
        heads, fleet(slots), counters=counters or {}, weights=weights or {}, turns=turns or Turns()
    )
    return [one.id for one in plan.picks]


def test_priorities_go_in_order_whoever_waits_longest() -> None:
    heads = [
        head("batch", priority=Priority.BATCH, rank=1),
        head("standard", rank=2),
        head("person", priority=Priority.INTERACTIVE, rank=3),
    ]
    assert names(heads) == ["person", "standard", "batch"]


def test_the_tenant_that_got_least_goes_next_and_is_charged_at_once() -> None:
    heads = [head(f"a{n}", tenant="a", rank=n) for n in range(3)]
    heads += [head(f"b{n}", tenant="b", rank=n, tokens=300) for n in range(3)]
    assert names(heads, counters={"a": 50.0, "b": 0.0}) == ["b0", "a0", "a1", "a2", "b1", "b2"]


def test_a_heavier_tenant_gets_its_multiple() -> None:
    heads = [head(f"{tenant}{n}", tenant=tenant, rank=n) for tenant in "ab" for n in range(9)]
    assert sorted(names(heads, 6, weights={"b": 2.0})) == ["a0", "a1", "b0", "b1", "b2", "b3"]


def test_inside_a_tenant_the_lowest_rank_of_any_class_goes_next() -> None:
    heads = [head("long", length_class=LengthClass.LONG, rank=1), head("short", rank=2)]
    assert names(heads) == ["long", "short"]


def test_a_lane_without_room_holds_nobody_up() -> None:
    short_only = fleet(2, classes=frozenset({LengthClass.SHORT}))
    heads = [head("long", length_class=LengthClass.LONG, rank=1), head("short", rank=2)]
    plan = plan_fair(heads, short_only, counters={}, weights={}, turns=Turns())
    assert [one.id for one in plan.picks] == ["short"]


def test_what_cannot_meet_its_deadline_is_late_and_takes_no_place() -> None:
    heads = [head("late", remaining_s=3, needs_s=4), head("fits", remaining_s=5, needs_s=4, rank=1)]
    plan = plan_fair(heads, fleet(1), counters={}, weights={}, turns=Turns())
    assert [[one.id for one in part] for part in (plan.picks, plan.late)] == [["fits"], ["late"]]
    plan = plan_fifo(heads, fleet(1))
    assert [[one.id for one in part] for part in (plan.picks, plan.late)] == [["fits"], ["late"]]


def test_fifo_asks_for_nothing_but_the_order_of_arrival() -> None:
    heads = [
        head("1", priority=Priority.BATCH),
        head("2", tokens=9),
        head("3", priority=Priority.INTERACTIVE),
    ]
    assert [one.id for one in plan_fifo(heads, fleet(2)).picks] == ["1", "2"]


def test_a_tenant_without_a_place_holds_nobody_up_in_either_order() -> None:
    heads = [head(f"a{n}", rank=n) for n in range(3)] + [head("b", tenant="b", rank=9)]
    plans = (
        plan_fair(heads, fleet(9), counters={}, weights={}, turns=Turns(), places=Places({"a": 2})),
        plan_fifo(heads, fleet(9), Places({"a": 2})),
    )
    assert [sorted(one.id for one in plan.picks) for plan in plans] == [["a0", "a1", "b"]] * 2
    places = Places({"a": 0})
    assert [one.id for one in plan_fifo(heads, fleet(1), places).picks] == ["b"]
    assert not places.none_for("b")


def test_places_are_one_tenants_over_all_its_priorities() -> None:
    heads = [head("s"), head("p", priority=Priority.INTERACTIVE), head("b", priority=Priority.BATCH)]
    places = Places({"a": 2})
    plan = plan_fair(heads, fleet(9), counters={}, weights={}, turns=Turns(), places=places)
    assert [one.id for one in plan.picks] == ["p", "s"]
    assert places.none_for("a")


def test_a_lower_priority_that_waits_too_long_gets_its_places() -> None:
    turns, served = Turns(), []
    for look in range(4 * EVERY):
        heads = [head(f"s{look}"), head("b", priority=Priority.BATCH, age_s=1e4)]
        served += names(heads, 1, turns=turns)
    assert served.count("b") == 4


def test_reserved_slots_are_for_people_and_a_person_may_take_the_place_of_others() -> None:
    batch, standard, person = (Kind(priority, LengthClass.SHORT) for priority in reversed(Priority))
    replica = Replica("w1", ALL, SlotRules(5, reserved=1), {batch: 4})
    assert (replica.free(batch), replica.free(person)) == (0, 4)
    replica.held = {person: 2, batch: 1}
    assert (replica.free(standard), replica.free(person)) == (2, 2)
    replica.held = {standard: 4}
    assert (replica.free(standard), replica.free(person)) == (0, 1)


def test_what_is_on_its_way_stands_in_the_way_of_no_higher_priority() -> None:
    batch, standard, person = (Kind(priority, LengthClass.SHORT) for priority in reversed(Priority))
    replica = Replica("w1", ALL, SlotRules(4), {standard: 3})
    replica.coming = {batch: 2, standard: 1}
    assert [replica.free(kind) for kind in (batch, standard, person)] == [-2, 0, 1]
    replica.coming = {person: 1}
    assert [replica.free(kind) for kind in (batch, standard)] == [0, 0]


def test_batch_work_runs_short_when_less_than_half_of_what_may_lie_ahead_does() -> None:
    kind = Kind(Priority.BATCH, LengthClass.SHORT)
    replica = Replica("w1", ALL, SlotRules(48), {kind: 48})
    made = Fleet([replica])
    assert made.room(kind) == 48 // BURST == 6
    for coming, short in ((0, True), (2, True), (3, False), (6, False)):
        replica.coming = {kind: coming}
        assert made.runs_short(kind) is short
    other = Replica("w2", frozenset({LengthClass.LONG}), SlotRules(8))
    assert not Fleet([replica, other]).runs_short(kind), "only who takes it counts"
    assert Fleet([Replica("w1", ALL, SlotRules(1024), {kind: 1024})]).room(kind) == BURST_MOST
    assert Fleet([replica], finished_per_s=20.0).runs_short(kind), "the faster, the more lies ahead"


def test_a_ceiling_holds_for_what_is_sent_too() -> None:
    replica = Replica("w1", ALL, SlotRules(8, ceilings={LengthClass.LONG: 2}))
    assert replica.free(Kind(Priority.BATCH, LengthClass.LONG)) == 2
    assert replica.free(Kind(Priority.BATCH, LengthClass.SHORT)) == 8
    ceilings = {LengthClass.LONG: 2, LengthClass.MEDIUM: 3}
    assert parse_ceilings(format_ceilings(ceilings)) == ceilings
    assert parse_ceilings(format_ceilings({})) == {}


def test_the_replica_that_takes_few_classes_is_used_first() -> None:
    both = (
        Replica("all", ALL, SlotRules(1)),
        Replica("short", frozenset({LengthClass.SHORT}), SlotRules(1)),
    )
    made = Bare(both)
    assert made.take(Kind(Priority.STANDARD, LengthClass.SHORT))
    assert made.take(Kind(Priority.STANDARD, LengthClass.LONG))
    assert not made.take(Kind(Priority.STANDARD, LengthClass.SHORT))


heads_of_anyone = st.lists(
    st.builds(
        head,
        st.uuids().map(str),
        tenant=st.sampled_from("abcd"),
        priority=st.sampled_from(Priority),
        length_class=st.sampled_from(LengthClass),
        tokens=st.integers(1, 5000),
        rank=st.floats(0, 1e6),
        age_s=st.floats(0, 1e4),
    ),
    max_size=40,
)


@given(heads_of_anyone, st.integers(1, 30))
def test_no_slot_stays_free_while_something_that_fits_waits(heads: list[Head], slots: int) -> None:
    made = fleet(slots)
    plan = plan_fair(heads, made, counters={}, weights={}, turns=Turns())
    picked = {one.id for one in plan.picks}
    assert len(picked) == len(plan.picks)
    for one in heads:
        if one.id not in picked:
            assert made.room(Kind(one.priority, one.length_class)) == 0
    assert len(plan.picks) >= min(len(heads), slots - made.replicas[0].rules.kept)


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 400), min_size=2),
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0.5, 1.0, 2.0])),
)
def test_backlogged_tenants_stay_within_one_task_of_their_shares(
    sizes: dict[str, int], weights: dict[str, float]
) -> None:
    counters = dict.fromkeys(sizes, 0.0)
    for look in range(200):
        waiting = [head(f"{one}{look}", tenant=one, tokens=size) for one, size in sizes.items()]
        plan = plan_fair(waiting, fleet(1), counters=counters, weights=weights, turns=Turns())
        for picked in plan.picks:
            counters[picked.tenant_id] += picked.tokens / weights.get(picked.tenant_id, 1.0)
    biggest = max(size / weights.get(one, 1.0) for one, size in sizes.items())
    assert max(counters.values()) - min(counters.values()) <= biggest


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_nobody_starves_whatever_keeps_coming(data: st.DataObject) -> None:
    """One task of the lowest priority waits while others arrive for ever."""
    turns, counters = Turns(), {"x": 0.0, "y": 0.0}
    victim = head("victim", tenant="x", priority=Priority.BATCH, rank=0.0, age_s=1e4)
    for look in range(20 * EVERY):
        rivals = [
            head(
                f"r{look}.{n}",
                tenant=data.draw(st.sampled_from("xy")),
                priority=data.draw(st.sampled_from(Priority)),
                tokens=data.draw(st.integers(1, 500)),
                rank=look + 1.0,
                age_s=data.draw(st.sampled_from([0.0, 1e4])),
            )
            for n in range(3)
        ]
        picks = plan_fair([victim, *rivals], fleet(1), counters=counters, weights={}, turns=turns).picks
        if any(one.id == "victim" for one in picks):
            return
        for one in picks:
            counters[one.tenant_id] += one.tokens
    pytest.fail("the task was never picked")


@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e9)),
    st.sets(st.sampled_from("abcd")),
    st.sets(st.sampled_from("abcd")),
    st.floats(0, 1e9),
)
def test_a_lift_only_raises_and_only_newcomers_and_not_above_who_was_there(
    served: dict[str, float], old: set[str], new: set[str], floor: float
) -> None:
    new -= old
    raised = lift(served, old | new, new, floor)
    assert set(raised.served) <= new
    assert all(level > served.get(one, 0.0) for one, level in raised.served.items())
    assert raised.floor >= floor
    if old:
        assert raised.floor == max(floor, min(served.get(one, 0.0) for one in old))


def test_shorter_goes_first_but_overtakes_nobody_for_longer_than_its_stretch() -> None:
    assert rank_delay_s(100, 0, 1e6, 1000.0) == pytest.approx(STRETCH * 0.1)
    assert rank_delay_s(10**9, 0, 1e6, 1.0) == MOST_DELAY_S
    assert rank_delay_s(0, 10**9, 10.0, None) == 5.0  # half of the time that its deadline leaves


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(1, 1e6), st.floats(1, 1e5))
def test_a_longer_task_never_ranks_before_a_shorter_one_of_the_same_moment(
    one: int, more: int, deadline_s: float, rate: float
) -> None:
    short = rank_delay_s(one, one, deadline_s, rate)
    assert short <= rank_delay_s(one + more, one, deadline_s, rate) <= MOST_DELAY_S
    assert short <= rank_delay_s(one, one + more, deadline_s, rate) <= MOST_DELAY_S


def test_of_batch_work_the_longer_goes_first_within_the_same_bounds() -> None:
    one, longer, longest = (
        rank_delay_s(10, tokens, 1e6, 100.0, Priority.BATCH) for tokens in (20, 200, 10**9)
    )
    assert MOST_DELAY_S > one > longer > longest == 0
    assert rank_delay_s(10, 0, 10.0, 1e5, Priority.BATCH) < 5.0  # half of the time that its deadline leaves


def test_an_output_token_counts_for_more_than_a_prompt_token() -> None:
    assert rank_delay_s(10, 20, 1e6, 1000.0) > rank_delay_s(50, 5, 1e6, 1000.0)


def test_requests_with_the_same_instructions_begin_alike() -> None:
    def of(system: str, user: str) -> int:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return prefix_key({"messages": messages})

    assert of("Translate.", "one") == of("Translate.", "two") != of("Summarize.", "one")
    assert prefix_key({"prompt": "x" * 512 + "a"}) == prefix_key({"prompt": "x" * 512 + "b"})
    assert -(2**63) <= prefix_key({}) < 2**63


def test_batch_work_keeps_to_a_prefix_for_a_while_and_then_takes_turns() -> None:
    heads = [head(str(n), priority=Priority.BATCH, prefix=n % 2, rank=n) for n in range(6)]
    assert [one.id for one in by_prefix(heads, (), None)] == ["0", "2", "4", "1", "3", "5"]
    assert [one.id for one in by_prefix(heads, (), Streak(1, 3))] == ["1", "3", "5", "0", "2", "4"]
    assert [one.id for one in by_prefix(heads, (), Streak(1, RUN))] == ["0", "2", "4", "1", "3", "5"]
    alone = [head(str(n), priority=Priority.BATCH, prefix=1, rank=n) for n in range(RUN + 9)]
    assert by_prefix(alone, alone[3:5], Streak(1, 3 * RUN)) == alone, (
        "with nobody to take turns with it goes on"
    )
    assert lengthen(Streak(0, 1), heads[:3:2]) == Streak(0, 3)
    assert lengthen(Streak(0, 1), heads[:2]) == Streak(1, 1)


def test_throughput_is_measured_only_while_more_waits_than_can_run() -> None:
    meter = Meter()
    for _ in range(10):
        meter.observe(1.0, Ended(1, 100, 50, 100, 2.0), saturated=False, slots=4)
    assert meter.pace.tokens_per_s is None
    assert (meter.pace.run_s, meter.pace.output_share, meter.pace.output_token_s) == (2.0, 0.5, 0.04)
    assert meter.pace.needs_s(100) == pytest.approx(2.0)
    for _ in range(10):
        meter.observe(1.0, Ended(10, 1000, 500, 1000, 20.0), saturated=True, slots=4)
    assert meter.pace.tokens_per_s == pytest.approx(1000.0)
    assert Pace().needs_s(100) == 0.0
