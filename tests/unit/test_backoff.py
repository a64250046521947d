"""How long an ended child stays down."""

from hypothesis import given
from hypothesis import strategies as st

from cli.stack.supervisor import Backoff


def test_delays_double_up_to_the_limit() -> None:
    backoff = Backoff(first_s=1, limit_s=5)
    assert [backoff.delay_s(failures) for failures in (1, 2, 3, 4, 100_000)] == [1, 2, 4, 5, 5]


def test_a_good_run_forgives_former_failures() -> None:
    backoff = Backoff(reset_after_s=60)
    assert backoff.failures(7, up_s=59) == 8
    assert backoff.failures(7, up_s=60) == 1


@given(st.integers(min_value=1, max_value=10**6))
def test_a_later_failure_never_waits_shorter(failures: int) -> None:
    backoff = Backoff()
    assert 0 < backoff.delay_s(failures) <= backoff.delay_s(failures + 1) <= backoff.limit_s
