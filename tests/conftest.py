"""Fixtures for every test: one Postgres and one Valkey a session, a fresh database a test."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does, and says nothing about the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cli.stack.postgres import PostgresServer  # noqa: E402
from cli.stack.valkey import ValkeyServer  # noqa: E402
from tests.support.databases import Databases  # noqa: E402

pytest_plugins = ["tests.support.callers", "tests.support.stacks"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long forms too")
    parser.addoption(
        "--data",
        type=Path,
        default=ROOT.parent / "shared" / "data",
        help="folder of real traces and prompts; tests that want one skip where it is absent",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A developer's settings must not change what is tested.
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        del os.environ[name]
    os.environ["HEADRACE_SECRETS_DIR"] = "/nonexistent"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="only with --full"))


@pytest.fixture(scope="session")
def real_data(pytestconfig: pytest.Config) -> Path:
    """The folder of real inputs."""
    folder: Path = pytestconfig.getoption("--data")
    if not folder.is_dir():
        pytest.skip(f"no real inputs at {folder}: name their folder with --data")
    return folder


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A throw-away Postgres, started when a test first needs it."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"), None, "test password", durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """A throw-away Valkey, started when a test first needs it."""
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"), None, "test password", durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def databases(postgres_server: PostgresServer) -> Databases:
    """Clones of the migrated template."""
    return Databases(postgres_server)


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """postgresql:// URL of a migrated database without rows, this test's own."""
    name = databases.create()
    yield databases.server.url_of(name)
    databases.server.drop_database(name)


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """postgresql:// URL of a database without a schema, this test's own."""
    name = databases.create_empty()
    yield databases.server.url_of(name)
    databases.server.drop_database(name)


@pytest.fixture
def empty_valkey(valkey_server: ValkeyServer) -> ValkeyServer:
    """The session's Valkey, emptied."""
    with valkey_server.client() as client:
        client.flushall()
        client.script_flush()
    return valkey_server


@pytest.fixture
def broker_url(empty_valkey: ValkeyServer) -> str:
    """redis:// URL for Celery's queues: logical database 0."""
    return empty_valkey.url_of(0)


@pytest.fixture
def streams_url(empty_valkey: ValkeyServer) -> str:
    """redis:// URL for events and results: logical database 1."""
    return empty_valkey.url_of(1)


@pytest.fixture
def redis_url(streams_url: str) -> str:
    """Any empty logical database."""
    return streams_url
