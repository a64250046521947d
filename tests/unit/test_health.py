"""When an engine counts as degraded or unhealthy."""

from core.health import Health, HealthPolicy, Sign

STEPS = [0.01] * 50


def learned() -> HealthPolicy:
    """A policy that knows how fast its engine is."""
    policy = HealthPolicy()
    for _ in range(5):
        policy.see_steps({4: STEPS})
        policy.see_probe(right=True, took_s=0.3, running=0)
        assert policy.judge() is None
    for _ in range(10):
        policy.see_memory(2 << 30)
    return policy


def test_steps_half_as_slow_again_degrade_after_two_windows_and_recover_after_two() -> None:
    policy = learned()
    slow = {4: [0.016] * 50}
    policy.see_steps(slow)
    assert policy.judge() is None
    policy.see_steps(slow)
    change = policy.judge()
    assert change is not None
    assert (change.before, change.after) == (Health.HEALTHY, Health.DEGRADED)
    assert change.reasons == {"slow_steps": "steps take 1.6 times their baseline"}
    policy.see_steps({4: STEPS})
    assert policy.judge() is None
    policy.see_steps({4: STEPS})
    change = policy.judge()
    assert change is not None
    assert (change.after, change.reasons) == (Health.HEALTHY, {})


def test_a_slow_engine_that_is_a_little_faster_is_still_slow() -> None:
    policy = learned()
    for step_s in (0.016, 0.016, 0.0135, 0.0135, 0.0135):
        policy.see_steps({4: [step_s] * 50})
        policy.judge()
    assert policy.health is Health.DEGRADED


def test_a_larger_batch_is_measured_by_itself() -> None:
    policy = learned()
    for _ in range(4):
        policy.see_steps({6: [0.05] * 50})
        assert policy.judge() is None


def test_few_steps_and_one_outlier_say_nothing() -> None:
    policy = learned()
    for _ in range(5):
        policy.see_steps({4: [0.5] * 5})
        policy.see_steps({4: [0.01] * 49 + [5.0]})
        assert policy.judge() is None


def test_a_baseline_sinks_and_never_rises() -> None:
    policy = learned()
    for step_s in (0.011, 0.012, 0.013, 0.014, 0.0145):  # slower so slowly that no window stands out
        policy.see_steps({4: [step_s] * 50})
        assert policy.judge() is None
    for _ in range(2):
        policy.see_steps({4: [0.0155] * 50})
    change = policy.judge()
    assert change is not None
    assert change.after is Health.DEGRADED


def test_two_wrong_answers_are_unhealthy_and_one_is_not() -> None:
    policy = learned()
    policy.see_probe(right=False, took_s=0.3, running=0)
    assert policy.judge() is None
    policy.see_probe(right=True, took_s=0.3, running=0)
    policy.see_probe(right=False, took_s=0.3, running=0)
    assert policy.judge() is None
    policy.see_probe(right=False, took_s=0.3, running=0)
    change = policy.judge()
    assert change is not None
    assert change.after is Health.UNHEALTHY
    assert list(change.reasons) == [Sign.WRONG_ANSWER]


def test_no_answer_twice_is_unhealthy() -> None:
    policy = learned()
    for _ in range(2):
        policy.see_no_answer("EngineFailedError")
    change = policy.judge()
    assert change is not None
    assert change.after is Health.UNHEALTHY


def test_a_probe_three_times_as_slow_beside_as_many_requests_degrades() -> None:
    policy = learned()
    for _ in range(2):
        policy.see_probe(right=True, took_s=5.0, running=30)  # as many were never seen: no baseline
    assert policy.judge() is None
    for _ in range(2):
        policy.see_probe(right=True, took_s=1.0, running=0)
    change = policy.judge()
    assert change is not None
    assert list(change.reasons) == [Sign.SLOW_PROBE]


def test_memory_that_grows_by_half_and_a_kv_cache_that_is_never_empty_degrade() -> None:
    policy = learned()
    for _ in range(2):
        policy.see_memory(2_500 << 20)
    assert policy.judge() is None
    for _ in range(2):
        policy.see_memory(3_200 << 20)
        policy.see_idle_kv(0.2)
    change = policy.judge()
    assert change is not None
    assert (change.after, set(change.reasons)) == (Health.DEGRADED, {Sign.MEMORY_GROWTH, Sign.KV_LEAK})


def test_a_dead_engine_is_unhealthy_at_once_and_a_new_one_starts_clean() -> None:
    policy = learned()
    for _ in range(2):
        policy.see_idle_kv(0.2)
    policy.judge()
    policy.see_engine(up=False, why="no answer for 60 s")
    change = policy.judge()
    assert change is not None
    assert (change.after, change.reasons["engine_down"]) == (Health.UNHEALTHY, "no answer for 60 s")
    policy.see_engine(up=True)
    change = policy.judge()
    assert change is not None
    assert (change.before, change.after, change.reasons) == (Health.UNHEALTHY, Health.HEALTHY, {})
