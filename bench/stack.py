"""The whole platform as a subprocess, for a benchmark: `headrace up` on a data folder of its own.

What stands in run.json is read as JSON: the command's classes lie above this package.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from bench.machine import standing_still
from bench.peer import PeerError, die_with_parent, log_tail

READY_S = 300.0  # the first start converts the demo model
_STOP_S = 90.0
_STORES = ("valkey", "postgres")
_AROUND_S = 1.5  # workers describe themselves once a second, and the dispatcher reads it twice
_MODELS = Path(".headrace") / "bench-models"  # converted once for all benchmarks run from a folder
_DEMO_MODEL = "smollm2-135m-instruct"  # as `headrace up` names it


def demo_model() -> Path:
    """Return the folder of the model that a stack serves, converted now where no stack did it. Raises: PeerError."""
    folder = _MODELS.absolute() / _DEMO_MODEL
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "cli.stack.model", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PeerError(f"the demo model could not be made: {done.stderr[-500:]}")
    return folder


class Stack:
    """One running stack."""

    def __init__(self, engine: str, settings: Mapping[str, str] | None = None) -> None:
        """`settings`: further HEADRACE_* variables of its processes."""
        self.engine = engine
        self._settings = dict(settings or {})
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._run: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        models = _MODELS.absolute()
        models.mkdir(parents=True, exist_ok=True)
        (self._folder / "models").symlink_to(models)
        log = self._folder / "up.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cli", "up", "--data", str(self._folder), "--engine", self.engine],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._settings},
                preexec_fn=die_with_parent,
            )
        deadline = time.monotonic() + READY_S
        while not self._read_run():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise PeerError(f"the stack did not start:\n{log_tail(log)}")
            time.sleep(0.2)

    def _read_run(self) -> bool:
        try:
            self._run = json.loads((self._folder / "run.json").read_text())
        except (FileNotFoundError, ValueError):
            return False
        return bool(self._run.get("ready"))

    @property
    def logs(self) -> Path:
        """Folder of the logs, gone with the stack."""
        return self._folder / "logs"

    @property
    def model(self) -> str:
        """What callers send as `model`."""
        return str(self._run["model"])

    @property
    def model_path(self) -> Path:
        """The model's folder."""
        return self._folder / "models" / self.model

    @property
    def metrics_urls(self) -> list[str]:
        """/metrics of each process."""
        return [str(url) for url in self._run["metrics_urls"].values()]

    @property
    def environment(self) -> dict[str, str]:
        """HEADRACE_* of the stack's processes, for a process that is to be set up as its worker is."""
        given = {str(name): str(value) for name, value in self._run["environment"].items()}
        return {**self._settings, **given, "HEADRACE_MODEL": self.model}

    @property
    def address(self) -> dict[str, Any]:
        """Where the API is and how to enter: arguments of `bench.client`."""
        host, _, port = str(self._run["api_url"]).removeprefix("http://").rpartition(":")
        return {"host": host, "port": int(port), "key": Path(self._run["api_key_file"]).read_text().strip()}

    def groups(self) -> dict[str, list[psutil.Process]]:
        """The stack's processes by what they are; the worker's engine is a group of its own."""
        self._read_run()
        assert self._process is not None
        groups = {"supervisor": [psutil.Process(self._process.pid)]}
        for name, pid in self._run["pids"].items():
            process = psutil.Process(pid)
            family = process.children(recursive=True)
            if name == "worker":
                groups["worker"], groups["engine"] = [process], family
            else:
                groups[name] = [process, *family]
        return groups

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have all of its processes stand still; wait for an answer from it afterwards. Raises: PeerError.

        An idle stack takes a little CPU time, and its probe of the engine, every half minute, stretched one step of
        another engine on the same cores to over a second.
        """
        groups = self.groups()
        stores = [process for name in _STORES for process in groups.pop(name)]
        # who asks stops before who answers, and wakes after it
        with standing_still([process for group in groups.values() for process in group] + stores):
            yield
        self._await_life()

    def _await_life(self) -> None:
        address = self.address
        body = {"model": self.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        try:
            answer = httpx.post(
                f"http://{address['host']}:{address['port']}/v1/chat/completions",
                headers={"Authorization": f"Bearer {address['key']}"},
                json=body,
                timeout=30,
                trust_env=False,
            )
        except httpx.HTTPError as error:
            raise PeerError(f"the stack did not wake up: {error!r}") from error
        if not answer.is_success:
            raise PeerError(f"the stack did not wake up: {answer.status_code} {answer.text[:300]}")
        time.sleep(_AROUND_S)

    def close(self) -> None:
        """Stop it and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
