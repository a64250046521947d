"""Bounds, access and the metrics of steps."""

import urllib.error
import urllib.request

import pytest
from pydantic import SecretStr

from runtime import metrics
from runtime.metrics_server import MetricsServer, may_read
from workers.meter import StepMeter


def value(name: str, **labels: str) -> float:
    return metrics.values().get((name, tuple(sorted(labels.items()))), 0.0)


def test_a_label_holds_a_bounded_number_of_values() -> None:
    given = [metrics.bounded("test", f"value-{number}") for number in range(500)]
    assert len(set(given)) == 65
    assert given[-1] == metrics.OTHER
    assert metrics.bounded("test", "value-3") == "value-3"


@pytest.mark.parametrize(
    ("token", "authorization", "peer", "forwarded", "allowed"),
    [
        (None, "", "127.0.0.1", False, True),
        (None, "", "::1", False, True),
        (None, "", "127.0.0.1", True, False),
        (None, "", "10.0.0.7", False, False),
        (None, "", "", False, False),
        ("secret", "Bearer secret", "10.0.0.7", True, True),
        ("secret", "bearer secret", "10.0.0.7", False, True),
        ("secret", "Bearer wrong", "127.0.0.1", False, False),
        ("secret", "", "127.0.0.1", False, False),
    ],
)
def test_who_may_read_metrics(
    token: str | None, authorization: str, peer: str, forwarded: bool, allowed: bool
) -> None:
    secret = None if token is None else SecretStr(token)
    assert may_read(secret, authorization, peer, forwarded=forwarded) is allowed


def test_a_process_without_a_server_of_its_own_serves_its_metrics_with_the_token() -> None:
    server = MetricsServer("127.0.0.1", 0, SecretStr("secret"))
    url = f"http://127.0.0.1:{server.port}"
    try:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/metrics")
        asked = urllib.request.Request(f"{url}/metrics", headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(asked) as answer:
            assert b"headrace_control_leading" in answer.read()
        with urllib.request.urlopen(f"{url}/healthz") as answer:
            assert answer.read() == b"ok\n"
    finally:
        server.stop()


def test_steps_are_timed_while_requests_run_and_idle_time_is_nobodys_step() -> None:
    meter = StepMeter("timed")
    meter.started(4)
    meter.step(10.0, running=2, waiting=1, output_tokens=2, prompt_tokens=30, kv_usage=0.25)
    meter.step(10.5, running=2, waiting=0, output_tokens=2, kv_usage=0.5)
    assert value("headrace_engine_batch_fill_ratio", model="timed") == 0.5
    assert value("headrace_engine_kv_usage_ratio", model="timed") == 0.5
    meter.step(11.0, running=0, waiting=0, output_tokens=2)
    meter.step(99.0, running=1, waiting=0, output_tokens=1, prompt_tokens=8)  # idle in between
    assert value("headrace_engine_step_seconds_sum", model="timed") == 1.0
    assert value("headrace_engine_steps_total", model="timed") == 4
    assert value("headrace_engine_tokens_total", model="timed", kind="prompt") == 38
    assert meter.take_window() == {2: [0.5, 0.5]}
    assert meter.take_window() == {}
