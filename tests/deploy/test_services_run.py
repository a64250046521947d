"""The services of compose.yaml run on what they are given: same commands, environment, secrets, health checks.

As processes of this machine: no container engine takes part, so users, mounts and networks are not tested.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from cli.stack.ports import free_port
from cli.stack.postgres import PostgresServer
from cli.stack.process import OwnedProcess, Program
from cli.stack.valkey import ValkeyServer
from runtime.settings import SECRETS_DIR_VARIABLE
from tests.deploy import compose
from tests.deploy.compose import seconds, services
from workers.deterministic_output import make_model


class Deployment:
    """One deployment's folders, and its services as local processes."""

    def __init__(self, folder: Path, database_url: str, valkey: ValkeyServer) -> None:
        self.folder = folder
        secrets = folder / "secrets"
        secrets.mkdir()
        (secrets / "headrace_database_url").write_text(database_url)
        (secrets / "headrace_broker_url").write_text(valkey.url_of(0))
        (secrets / "headrace_streams_url").write_text(valkey.url_of(1))
        subprocess.run([compose.ROOT / "deploy" / "make-secrets", secrets], check=True, capture_output=True)
        for name in ("keys", "tmp"):
            (folder / name).mkdir()
        make_model(folder / "models" / compose.GIVEN["HEADRACE_MODEL"])
        self._replacements = {
            "/keys/": f"{folder}/keys/",
            "/models/": f"{folder}/models/",
            "8000": str(free_port()),
            "5555": str(free_port()),
            "0.0.0.0": "127.0.0.1",
        }

    def words(self, service: str, words: Sequence[str]) -> list[str]:
        """With this machine's paths and ports for the container's."""
        out = []
        for word in words:
            word = word.replace("/run/secrets/", f"{self._secrets_of(service)}/")
            for theirs, ours in self._replacements.items():
                word = word.replace(theirs, ours)
            out.append(word)
        return out

    def environment(self, service: str) -> dict[str, str]:
        """What the service is given and nothing else of Headrace's."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        return {
            **own,
            "PATH": f"{compose.ROOT / '.venv' / 'bin'}:{own['PATH']}",
            SECRETS_DIR_VARIABLE: str(self._secrets_of(service)),
            **services()[service].get("environment", {}),
            "HEADRACE_ENGINE": "deterministic",
        }

    def run(self, service: str, words: Sequence[str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a one-shot service, or other words as one."""
        return subprocess.run(
            self.words(service, services()[service]["command"] if words is None else words),
            env=self.environment(service),
            cwd=self.folder / "tmp",
            capture_output=True,
            text=True,
            timeout=60,
        )

    def healthy(self, service: str) -> bool:
        """Ask by the service's own health check."""
        test = services()[service]["healthcheck"]["test"]
        words = test[1:] if test[0] == "CMD" else ["sh", "-c", *test[1:]]
        return self.run(service, words).returncode == 0

    def process(self, service: str) -> OwnedProcess:
        """A long-running service, not yet started."""
        return OwnedProcess(
            Program(
                name=service,
                argv=self.words(service, services()[service]["command"]),
                log=self.folder / f"{service}.log",
                cwd=self.folder / "tmp",
                env=self.environment(service),
                stop_timeout_s=seconds(services()[service]["stop_grace_period"]),
            )
        )

    def _secrets_of(self, service: str) -> Path:
        folder = self.folder / "run" / service
        if not folder.exists():
            folder.mkdir(parents=True)
            for name in services()[service].get("secrets", []):
                (folder / name).write_text((self.folder / "secrets" / name).read_text())
        return folder


@pytest.fixture
def deployment(
    tmp_path: Path, postgres_server: PostgresServer, empty_database_url: str, empty_valkey: ValkeyServer
) -> Deployment:
    return Deployment(tmp_path, empty_database_url, empty_valkey)


def test_every_service_becomes_healthy_on_what_it_is_given_and_ends_when_told(
    deployment: Deployment, empty_database_url: str
) -> None:
    for name in ("migrate", "bootstrap", "model"):
        done = deployment.run(name)
        assert done.returncode == 0, done.stdout + done.stderr
        again = deployment.run(name)
        assert again.returncode == 0, f"{name} is run at each `up`: {again.stderr}"
    assert (deployment.folder / "keys" / "default").read_text().startswith("hr")

    names = ("control", "api", "flower", "worker-cpu")
    running = {name: deployment.process(name) for name in names}
    try:
        for name, process in running.items():
            process.start(lambda name=name: deployment.healthy(name), timeout_s=60.0)  # type: ignore[misc]
        with psycopg.connect(empty_database_url) as connection:
            workers = connection.execute("select name, model, state from workers").fetchall()
        assert workers == [(os.uname().nodename, compose.GIVEN["HEADRACE_MODEL"], "ready")]
    finally:
        for process in reversed(running.values()):
            process.stop()
    assert not any(deployment.healthy(name) for name in names if name != "flower")
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("select name from workers").fetchall() == []
