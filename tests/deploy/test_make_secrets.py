"""deploy/make-secrets makes files that fit each other, and that the settings and the stores accept."""

import os
import stat
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
import redis

from cli.stack.ports import free_port
from cli.stack.postgres import PostgresServer
from cli.stack.process import OwnedProcess, Program
from cli.stack.valkey import binary
from runtime.settings import SECRETS_DIR_VARIABLE, Settings
from tests.deploy import compose
from tests.deploy.commands import inner

SCRIPT = compose.ROOT / "deploy" / "make-secrets"


def make(folder: Path) -> str:
    return subprocess.run([SCRIPT, folder], check=True, capture_output=True, text=True).stdout


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text().strip() for file in folder.iterdir()}


def settings_of(folder: Path) -> dict[str, str]:
    read = Settings(_secrets_dir=folder)
    return {
        name: getattr(read, name).get_secret_value()
        for name in ("database_url", "broker_url", "streams_url", "key_pepper")
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make(tmp_path / "secrets")
    return tmp_path / "secrets"


def test_it_makes_exactly_what_the_compose_file_names(folder: Path) -> None:
    assert set(contents(folder)) == set(compose.deployed()["secrets"])


def test_settings_read_what_it_made(folder: Path) -> None:
    made, read = contents(folder), settings_of(folder)
    for name, value in read.items():
        assert value == made[f"headrace_{name}"]
    assert len(read["key_pepper"]) >= 32


def test_urls_name_the_services_and_carry_their_passwords(folder: Path) -> None:
    made, read = contents(folder), settings_of(folder)
    database, broker = urlsplit(read["database_url"]), urlsplit(read["broker_url"])
    streams = urlsplit(read["streams_url"])
    environment = compose.services()["postgres"]["environment"]
    assert database.hostname == "postgres"
    assert database.username == environment["POSTGRES_USER"]
    assert database.path == f"/{environment['POSTGRES_DB']}"
    assert database.password == made["postgres_password"]
    assert broker.hostname == streams.hostname == "valkey"
    assert broker.password == streams.password == made["valkey_password"]
    assert broker.path != streams.path


def test_only_the_owner_can_read_them(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_the_containers_run_as_the_owner_and_never_as_root(folder: Path) -> None:
    noted = dict(line.split("=") for line in (folder.parent / ".env").read_text().splitlines())
    uid, gid = int(noted["DEPLOY_UID"]), int(noted["DEPLOY_GID"])
    assert uid != 0
    assert uid == (os.getuid() or 10001)
    for file in [folder, *folder.iterdir()]:
        assert (file.stat().st_uid, file.stat().st_gid) == (uid, gid), file.name


def test_a_second_run_changes_nothing(folder: Path) -> None:
    before, env = contents(folder), (folder.parent / ".env").read_text()
    assert make(folder) == ""
    assert (contents(folder), (folder.parent / ".env").read_text()) == (before, env)


def test_two_deployments_have_nothing_in_common(folder: Path, tmp_path: Path) -> None:
    make(tmp_path / "other" / "secrets")
    for name, value in contents(tmp_path / "other" / "secrets").items():
        assert value != contents(folder)[name], name


def test_what_is_missing_is_made_to_fit_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    password = "a b/é@:%x\u20ac"
    (folder / "postgres_password").write_text(password)
    (folder / "headrace_broker_url").write_text("redis://elsewhere:6379/3\n")
    make(folder)
    read = settings_of(folder)
    assert unquote(urlsplit(read["database_url"]).password or "") == password
    assert read["broker_url"] == "redis://elsewhere:6379/3"
    assert (folder / "postgres_password").read_text() == password


def test_it_adds_to_an_env_file_and_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("HEADRACE_MODEL=m\nDEPLOY_GID=77")
    make(tmp_path / "secrets")
    lines = (tmp_path / ".env").read_text().splitlines()
    assert lines[:2] == ["HEADRACE_MODEL=m", "DEPLOY_GID=77"]
    assert [line.partition("=")[0] for line in lines[2:]] == ["DEPLOY_UID"]


def test_commands_need_no_more_than_the_folder(
    tmp_path: Path, postgres_server: PostgresServer, empty_database_url: str
) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "headrace_database_url").write_text(empty_database_url)
    make(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment[SECRETS_DIR_VARIABLE] = str(folder)
    headrace = [str(compose.ROOT / ".venv" / "bin" / "headrace")]
    for name in ("migrate", "bootstrap"):
        words = inner(compose.services()[name]["command"])[1:]
        words = [word.replace("/keys", str(tmp_path)) for word in words]
        subprocess.run([*headrace, *words], check=True, env=environment, cwd=tmp_path, timeout=60)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("default", "admin")} == {0o600}
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("select name from tenants order by name").fetchall() == [
            ("default",),
            ("operator",),
        ]


def test_valkey_as_composed_takes_the_password_keeps_data_and_evicts_nothing(
    folder: Path, tmp_path: Path
) -> None:
    data, port = tmp_path / "data", free_port()
    data.mkdir()
    words = [
        word.replace("/run/secrets/", f"{folder}/").replace("/data", str(data))
        for word in compose.services()["valkey"]["command"][1:]
    ]
    program = Program(
        name="valkey",
        argv=[binary(), *words, "--port", str(port), "--bind", "127.0.0.1"],
        log=tmp_path / "valkey.log",
        cwd=data,
    )
    url = settings_of(folder)["streams_url"].replace("@valkey:6379", f"@127.0.0.1:{port}")

    def answers() -> bool:
        try:
            with redis.Redis.from_url(url) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    server = OwnedProcess(program)
    server.start(answers, timeout_s=10.0)
    try:
        with redis.Redis.from_url(url) as client:
            wanted = {
                "appendonly": "yes",
                "maxmemory-policy": "noeviction",
                "maxmemory": str(1 << 30),
                "save": "",
            }
            for name, value in wanted.items():
                assert client.config_get(name)[name] == value
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
    finally:
        server.stop()
