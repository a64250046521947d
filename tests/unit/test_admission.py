"""Who is accepted, who is refused, and what they are told."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.admission import GRACE_S, Ask, Bound, Promises, judge
from core.lanes import Priority
from core.pace import Pace
from core.waits import ModelBacklog, own_turn_s, wait_s

ASK = Ask(
    tokens=100,
    lane_tasks=10,
    lane_tokens=1000,
    tenant_tasks=5,
    tenant_tokens=500,
    lane_bound=Bound(),
    tenant_bound=Bound(),
    tokens_per_s=100.0,
    wait_s=10.0,
    needs_s=2.0,
    start_within_s=None,
    deadline_s=60.0,
)
POOL = ("m", "standard", "tenant")


def test_what_fits_is_accepted() -> None:
    assert judge(ASK) is None
    assert (
        judge(replace(ASK, wait_s=None, start_within_s=1.0)) is None
    )  # nothing measured: nothing refused for it


@pytest.mark.parametrize(
    ("bound", "code", "of_tenant", "after_s"),
    [
        ({"lane_bound": Bound(tasks=10)}, "lane_full", False, 2.0),
        ({"lane_bound": Bound(tokens=1099)}, "lane_full", False, 1.0),
        ({"tenant_bound": Bound(tasks=5)}, "tenant_queue_full", True, 2.0),
        ({"tenant_bound": Bound(tokens=599)}, "tenant_queue_full", True, 1.0),
    ],
)
def test_a_bound_refuses_and_names_a_time(
    bound: dict[str, Bound], code: str, of_tenant: bool, after_s: float
) -> None:
    refusal = judge(replace(ASK, **bound))  # type: ignore[arg-type]
    assert refusal is not None
    assert (refusal.code, refusal.of_tenant, refusal.retry_after_s) == (code, of_tenant, after_s)


def test_an_empty_queue_takes_a_task_of_any_length() -> None:
    assert (
        judge(
            replace(
                ASK, lane_tasks=0, lane_tokens=0, tenant_tasks=0, tenant_tokens=0, lane_bound=Bound(tokens=1)
            )
        )
        is None
    )


def test_a_deadline_that_the_estimate_misses_is_refused_at_once() -> None:
    refusal = judge(replace(ASK, deadline_s=11.0))
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("deadline_unreachable", 2.0)


def test_who_waits_for_an_answer_is_refused_where_it_cannot_start_in_time() -> None:
    refusal = judge(replace(ASK, start_within_s=5.0))
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("not_started_in_time", 6.0)


def test_a_flood_makes_nobody_wait_but_itself() -> None:
    backlog = ModelBacklog()
    backlog.add(Priority.STANDARD, "flood", 10_000)
    backlog.add(Priority.STANDARD, "light", 100)
    backlog.add(Priority.INTERACTIVE, "people", 50)
    backlog.add(Priority.BATCH, "files", 10**6)
    assert backlog.ahead(Priority.STANDARD, "light", {}).total == 50 + 100 + 100
    assert backlog.ahead(Priority.STANDARD, "light", {"flood": 2.0}).total == 50 + 100 + 200
    assert backlog.ahead(Priority.STANDARD, "new", {}).total == 50
    assert backlog.ahead(Priority.STANDARD, "light", {}, fifo=True).total == 50 + 100 + 10_000


def test_a_wait_is_tokens_over_rate_and_the_next_free_slot() -> None:
    pace = Pace(tokens_per_s=100.0, run_s=4.0, slots=8)
    assert (wait_s(0, pace), wait_s(200, pace), wait_s(200, Pace())) == (0.0, 2.5, None)


def test_a_tenant_with_a_bound_on_what_it_runs_waits_for_its_own_by_turns() -> None:
    pace = Pace(run_s=4.0)
    assert (own_turn_s(10, 2, pace), own_turn_s(10, None, pace), own_turn_s(10, 2, Pace())) == (
        20.0,
        0.0,
        0.0,
    )


def test_a_refusal_is_a_promise_until_it_is_kept_or_its_time_is_over() -> None:
    promises = Promises()
    promises.make(b"a", POOL, 100, 10.0, now=0.0)
    assert promises.standing(0.0) == {POOL: 100.0}
    assert not promises.take(b"a", 5.0)  # too early
    assert not promises.take(b"b", 10.0)  # another's
    assert promises.take(b"a", 10.0)
    assert promises.standing(10.0) == {}
    promises.make(b"c", POOL, 100, 10.0, now=0.0)
    assert promises.standing(10.0 + GRACE_S + 0.1) == {}
    assert promises.kept_share < 1.0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 1000), st.floats(1, 100)), max_size=50))
def test_no_more_is_kept_open_than_was_refused(refused: list[tuple[int, int, float]]) -> None:
    promises, latest = Promises(), dict[int, int]()
    for key, tokens, after_s in refused:
        promises.make(bytes([key]), POOL, tokens, after_s, now=0.0)
        latest[key] = tokens
    assert sum(promises.standing(0.5).values()) == pytest.approx(sum(latest.values()))
