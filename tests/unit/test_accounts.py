"""Engine time: shared by tokens, conserved to the microsecond."""

from hypothesis import given
from hypothesis import strategies as st

from workers.accounts import Account, EngineAccounts


def total(engine: EngineAccounts, now: int) -> int:
    time = engine.read(now)
    return time.idle_us + time.busy_us + time.overhead_us


def test_a_step_is_shared_by_the_tokens_made_and_the_prompt_worked_through() -> None:
    engine = EngineAccounts(0)
    engine.up(0)
    first, second = Account(), Account()
    engine.begin(first, 8, 0)
    engine.step({first: 1}, 100)
    engine.begin(second, 8, 100)
    engine.step({first: 1, second: 1}, 1100)
    assert (first.used_us, second.used_us) == (100 + 100, 900)


def test_prompt_tokens_from_the_cache_weigh_nothing() -> None:
    engine = EngineAccounts(0)
    engine.up(0)
    first, second = Account(), Account()
    engine.begin(first, 9, 0)
    engine.begin(second, 9, 0)
    engine.step({first: 1, second: 1}, 1200, cached={second: 8})
    assert (first.used_us, second.used_us) == (1000, 200)


def test_a_prompt_of_several_steps_pays_for_each_of_them() -> None:
    engine = EngineAccounts(0)
    engine.up(0, step_tokens=11, max_requests=4)
    talking, long = Account(), Account()
    engine.begin(talking, 0, 0)
    engine.step({talking: 1}, 0)
    engine.begin(long, 15, 0)
    engine.step({talking: 1}, 1100)
    assert (talking.used_us, long.used_us) == (100, 1000), "ten of the prompt's tokens fit beside the other"
    engine.step({talking: 1, long: 1}, 1800)
    assert (talking.used_us, long.used_us) == (200, 1600), "five were left"


def test_a_request_that_waits_for_a_place_pays_nothing() -> None:
    engine = EngineAccounts(0)
    engine.up(0, step_tokens=100, max_requests=1)
    running, waiting = Account(), Account()
    engine.begin(running, 4, 0)
    engine.begin(waiting, 4, 0)
    engine.step({running: 1}, 50)
    engine.step({running: 1}, 100)
    assert (running.used_us, waiting.used_us) == (100, 0)


def test_time_without_requests_is_idle_and_time_without_an_engine_is_overhead() -> None:
    engine = EngineAccounts(0)
    engine.up(70)
    engine.begin(Account(), 1, 100)
    engine.down(130)
    engine.up(140)
    time = engine.read(200)
    assert (time.idle_us, time.busy_us, time.overhead_us) == (30 + 60, 0, 70 + 30 + 10)


def test_what_an_abandoned_request_left_of_a_step_is_overhead() -> None:
    engine = EngineAccounts(0)
    engine.up(0)
    account = Account()
    engine.begin(account, 1, 0)
    engine.step({account: 1}, 10)
    engine.end(account, 15)
    assert engine.read(20).overhead_us == 5
    assert engine.read(20).idle_us == 5


_events = st.lists(
    st.tuples(
        st.sampled_from(["begin", "step", "end", "down", "up"]),
        st.integers(min_value=0, max_value=5000),
        st.integers(min_value=0, max_value=7),
        st.integers(min_value=0, max_value=300),
    ),
    max_size=60,
)


@given(_events)
def test_whatever_happens_wall_is_idle_busy_and_overhead_and_busy_is_the_sum_of_accounts(
    events: list[tuple[str, int, int, int]],
) -> None:
    engine, now = EngineAccounts(0), 0
    accounts = [Account() for _ in range(8)]
    running: set[int] = set()
    engine.up(0, step_tokens=64, max_requests=4)
    for kind, passed, which, tokens in events:
        now += passed
        if kind == "begin" and which not in running:
            engine.begin(accounts[which], tokens, now)
            running.add(which)
        elif kind == "end" and which in running:
            engine.end(accounts[which], now)
            running.discard(which)
        elif kind == "step":
            engine.step({accounts[one]: 1 + tokens % 3 for one in running if one <= which}, now)
        elif kind == "down":
            engine.down(now)
            running.clear()
        elif kind == "up":
            engine.up(now, step_tokens=64, max_requests=4)
    engine.down(now)
    assert total(engine, now) == now
    assert engine.read(now).busy_us == sum(account.used_us for account in accounts)
