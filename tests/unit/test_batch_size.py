"""How many batch requests run at once: enough for throughput, few enough for people."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batch_size import FLOOR_SHARE, Pressure, StepTimes, batch_size

CALM = Pressure(size=8, most=56, first_token_s=None, target_s=1.0, running=60, step_s=0.2, extra_step_s=0.003)
pressures = st.builds(
    Pressure,
    size=st.integers(1, 64),
    most=st.integers(1, 64),
    first_token_s=st.none() | st.floats(0, 60),
    target_s=st.floats(0.05, 10),
    running=st.integers(0, 64),
    step_s=st.none() | st.floats(0, 5),
    extra_step_s=st.none() | st.floats(0, 0.5),
)


@given(pressures)
def test_the_size_stays_between_its_bounds(pressure: Pressure) -> None:
    assert max(1, pressure.most // FLOOR_SHARE) <= batch_size(pressure) <= pressure.most


@given(pressures, st.floats(0, 60), st.floats(0, 60))
def test_a_later_first_token_never_makes_it_larger(pressure: Pressure, one: float, other: float) -> None:
    sooner, later = sorted((one, other))
    assert batch_size(replace(pressure, first_token_s=later)) <= max(
        batch_size(replace(pressure, first_token_s=sooner)), max(1, pressure.most // FLOOR_SHARE)
    )


@given(pressures)
def test_without_interactive_work_it_is_as_large_as_it_may_be(pressure: Pressure) -> None:
    assert batch_size(replace(pressure, first_token_s=None)) == pressure.most


def test_late_first_tokens_make_it_smaller_by_what_the_step_times_promise() -> None:
    late = replace(CALM, size=56, first_token_s=1.029)
    assert batch_size(late) == 51  # 0.029 s over two steps at 0.003 s a request
    assert batch_size(replace(late, first_token_s=9.0)) == 42  # never more than a quarter at once
    assert batch_size(replace(late, first_token_s=0.9)) == 56  # near the target: left as it is


@pytest.mark.parametrize("extra", [0.002, 0.01, 0.05])
def test_it_settles_where_the_target_is_met_or_at_its_floor(extra: float) -> None:
    size, seen = 56, []
    for _ in range(200):
        step_s = 0.05 + extra * (size + 4)
        now = Pressure(size, 56, 2 * step_s, 0.6, size + 4, step_s, extra)
        seen.append(2 * step_s)
        size = batch_size(now)
    assert max(seen[-20:]) <= 0.6 * 1.1 or size <= 56 // FLOOR_SHARE + 56 // 16
    assert size >= 56 // FLOOR_SHARE


def test_step_times_are_a_line_through_what_was_seen_lately() -> None:
    times = StepTimes()
    assert times.at(8) is None and times.slope_s is None
    for _ in range(50):
        times.add(8, 9.0)  # long ago
    assert times.at(8) == pytest.approx(9.0) and times.slope_s is None  # all alike: no slope
    for number in range(600):
        running = 8 + number % 48
        times.add(running, 0.05 + 0.003 * running)
    assert times.slope_s == pytest.approx(0.003, rel=0.05)
    assert times.at(64) == pytest.approx(0.05 + 0.003 * 64, rel=0.05)
