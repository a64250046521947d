"""The embedded stores: what they promise about passwords, restarts and their owner's death."""

import os
import shutil
import signal
import socket
import stat
from pathlib import Path

import psycopg
import pytest
import redis

from cli.stack.postgres import PostgresServer, binaries
from cli.stack.process import StackError
from cli.stack.valkey import ValkeyServer
from tests.support.owner import PASSWORD
from tests.support.owners import killed_owner
from tests.support.waiting import eventually, is_alive

Server = type[PostgresServer] | type[ValkeyServer]
BOTH = pytest.mark.parametrize("server", [PostgresServer, ValkeyServer])


def test_postgres_refuses_a_wrong_password(postgres_server: PostgresServer) -> None:
    wrong = postgres_server.url.replace("test%20password", "wrong")
    assert wrong != postgres_server.url
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_valkey_refuses_a_wrong_or_missing_password(valkey_server: ValkeyServer) -> None:
    for credentials in (":wrong@", ""):
        client = redis.Redis.from_url(f"redis://{credentials}127.0.0.1:{valkey_server.port}/0")
        with pytest.raises(redis.AuthenticationError):
            client.ping()


def test_stores_listen_on_loopback_only(postgres_server: PostgresServer, valkey_server: ValkeyServer) -> None:
    ports = {f"{server.port:04X}" for server in (postgres_server, valkey_server)}
    listening = "0A"
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, port = local.partition(":")
            if state == listening and port in ports:
                addresses.add(address)
    assert addresses == {"0100007F"}


def test_a_durable_postgres_syncs_and_checks_pages(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path, None, "p")
    server.start()
    try:
        with psycopg.connect(server.url) as connection:
            for setting in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
                assert connection.execute(f"show {setting}").fetchone() == ("on",)
    finally:
        server.stop()


def test_a_durable_valkey_appends_to_a_file_and_never_evicts(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path, None, "p")
    server.start()
    try:
        with server.client() as client:
            assert client.config_get("appendonly", "appendfsync", "maxmemory-policy") == {
                "appendonly": "yes",
                "appendfsync": "everysec",
                "maxmemory-policy": "noeviction",
            }
    finally:
        server.stop()
    assert stat.S_IMODE((tmp_path / "valkey.conf").stat().st_mode) == 0o600


async def test_postgres_ends_with_its_killed_owner_and_keeps_its_rows(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    first = PostgresServer(folder, None, PASSWORD)
    first.start()
    with psycopg.connect(first.url) as connection:
        connection.execute("create table kept as select 1 as one")
    first.stop()
    owned = await killed_owner("postgres", folder)
    # At once: a new start waits for the old server rather than failing on its lock file.
    again = PostgresServer(folder, None, PASSWORD)
    again.start()
    try:
        assert not is_alive(owned.pids["postgres"])
        with psycopg.connect(again.url) as connection:
            assert connection.execute("select one from kept").fetchone() == (1,)
    finally:
        again.stop()


async def test_valkey_ends_with_its_killed_owner_and_keeps_its_keys(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    first = ValkeyServer(folder, None, PASSWORD)
    first.start()
    with first.client() as client:
        client.set("kept", "1")
    first.stop()
    owned = await killed_owner("valkey", folder)
    await eventually(lambda: not is_alive(owned.pids["valkey"]))
    again = ValkeyServer(folder, None, PASSWORD)
    again.start()
    try:
        with again.client() as client:
            assert client.get("kept") == b"1"
    finally:
        again.stop()


def test_postgres_starts_after_it_was_killed_itself(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path, None, "p")
    server.start()
    with psycopg.connect(server.url) as connection:
        connection.execute("create table kept as select 1 as one")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    assert (tmp_path / "pg18" / "postmaster.pid").exists()
    server.start()
    try:
        with psycopg.connect(server.url) as connection:
            assert connection.execute("select one from kept").fetchone() == (1,)
    finally:
        server.stop()


def test_a_lock_file_whose_process_id_belongs_to_another_program_is_no_obstacle(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path, None, "p", durable=False)
    server.start()
    server.stop()
    lines = [str(os.getpid()), str(server.data), "1", str(server.port), "", "127.0.0.1", "0 0", "ready"]
    (server.data / "postmaster.pid").write_text("\n".join(lines) + "\n")
    server.start()
    server.stop()


def test_a_half_made_cluster_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "pg18.new" / "base").mkdir(parents=True)
    server = PostgresServer(tmp_path, None, "p", durable=False)
    server.start()
    server.stop()


def test_another_password_than_the_cluster_was_made_with_is_a_clear_error(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path, None, "p", durable=False)
    server.start()
    server.stop()
    other = PostgresServer(tmp_path, None, "q", durable=False)
    with pytest.raises(StackError, match="made with another password"):
        other.start()
    assert other.pid is None


@BOTH
def test_a_taken_port_is_a_clear_error(server: Server, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port} on 127.0.0.1 is in use"):
            server(tmp_path, port, "p").start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts Postgres as another user")
def test_root_can_keep_data_and_programs_where_nobody_else_can_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = binaries().parents[1]
    shutil.copytree(package / "pginstall18", closed / package.name / "pginstall18")
    libraries = f"{package.name}.libs"
    shutil.copytree(package.with_name(libraries), closed / libraries)
    monkeypatch.setattr("cli.stack.postgres.binaries", lambda: closed / package.name / "pginstall18" / "bin")
    server = PostgresServer(closed / "data", None, "p", durable=False)
    server.start()
    try:
        assert server.pid is not None
        status = Path(f"/proc/{server.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert fields["Uid"].split()[0] != "0"
        override_modes_only = 1 << 1
        assert int(fields["CapEff"], 16) == override_modes_only
    finally:
        server.stop()
