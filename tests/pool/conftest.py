"""Fixtures of the lab, and the workers' logs on a failure."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.stack.valkey import ValkeyServer
from tests.pool.lab import Lab


@pytest.fixture(scope="session")
def probe_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """Where tasks write down what happened: not the broker, whose connections tests cut."""
    server = ValkeyServer(tmp_path_factory.mktemp("probe"), None, "test password", durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def lab(empty_valkey: ValkeyServer, probe_server: ValkeyServer, tmp_path: Path) -> Iterator[Lab]:
    """A lab on the session's emptied Valkey."""
    made = Lab(empty_valkey, probe_server, tmp_path)
    yield made
    made.close()


@pytest.fixture
def durable_lab(probe_server: ValkeyServer, tmp_path: Path) -> Iterator[Lab]:
    """A lab on a Valkey of its own that survives a restart."""
    server = ValkeyServer(tmp_path / "valkey", None, "test password")
    server.start()
    made = Lab(server, probe_server, tmp_path)
    yield made
    made.close()
    server.stop()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the workers' logs to a failure."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    lab = getattr(item, "funcargs", {}).get("lab") or getattr(item, "funcargs", {}).get("durable_lab")
    if report.when == "call" and report.failed and lab is not None:
        for worker in lab.workers:
            if worker.log.exists():
                report.sections.append((worker.options.name, worker.log.read_text()[-20000:]))
