"""`headrace bench control`: jobs a second of the control plane, no model behind it.

Arms: `ours`, tasks accepted, published, claimed, run on the deterministic engine and settled; `celery`, `arq` and
`taskiq`, plain workers that write the same rows with a statement each, in a transaction for the claim and one for the
end. A producer and a worker process each (ours has its control process besides), the same Valkey and Postgres.
arq and taskiq need other versions of redis than we do: `uv` runs them in environments of their own.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from bench import machine
from bench.harness import Result, Row, percentile, row
from bench.naive.statements import PREPARE
from bench.peer import Peer, PeerError, die_with_parent, log_tail
from bench.stack import Stack

NAME = "control"
HERE = Path(__file__).parent / "naive"
DONE_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    jobs: int  # an arm and round
    rounds: int
    seconds: float  # of half load


FULL = Plan(jobs=3000, rounds=2, seconds=15)
QUICK = Plan(jobs=100, rounds=1, seconds=1)


def peers() -> dict[str, list[str]]:
    """The command of each peer that can be run here."""
    found = {"celery": [sys.executable, str(HERE / "celery_threads.py")]}
    beside = Path(sys.prefix).parent / ".uv" / "bin" / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is not None:
        postgres = f"asyncpg=={version('asyncpg')}"
        needs = {"arq": ["arq==0.28.0"], "taskiq": ["taskiq==0.13.0", "taskiq-redis==1.2.4"]}
        for name, packages in needs.items():
            environment = [part for package in (*packages, postgres) for part in ("--with", package)]
            run = [
                uv,
                "run",
                "-q",
                "--no-project",
                "--isolated",
                "-p",
                sys.executable,
                *environment,
                "python",
            ]
            found[name] = [*run, str(HERE / f"{name}_jobs.py")]
    return found


class Bench:
    """The arms on one running stack."""

    def __init__(self, stack: Stack, submitter: Peer, plan: Plan) -> None:
        self._stack, self._submitter, self._plan = stack, submitter, plan
        self._database_url = stack.environment["HEADRACE_DATABASE_URL"]
        broker, _, _ = stack.environment["HEADRACE_BROKER_URL"].rpartition("/")
        self._environment = {
            **os.environ,
            "PEER_DATABASE_URL": self._database_url,
            "PEER_REDIS_URL": f"{broker}/5",
        }

    def ours(self) -> float:
        """Jobs a second of our arm."""
        before = self._count("public.tasks")
        began = time.monotonic()
        self._submitter.ask(do="many", count=self._plan.jobs, key=self._stack.address["key"])
        return self._plan.jobs / (self._until("public.tasks", before + self._plan.jobs) - began)

    def naive(self, name: str, command: Sequence[str]) -> float:
        """Jobs a second of a peer."""
        self._run(PREPARE)
        log = self._stack.logs / f"{name}.log"
        with self._working(command, log):
            subprocess.run([*command, "produce", "10"], env=self._environment, check=True)  # it has started
            self._until("peer.tasks", 10)
            began = time.monotonic()
            subprocess.run([*command, "produce", str(self._plan.jobs)], env=self._environment, check=True)
            return self._plan.jobs / (self._until("peer.tasks", 10 + self._plan.jobs) - began)

    @contextmanager
    def _working(self, command: Sequence[str], log: Path) -> Iterator[None]:
        with log.open("wb") as output:
            worker = subprocess.Popen(
                [*command, "work"],
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        try:
            yield
        except PeerError as error:
            raise PeerError(f"{error}\n{log_tail(log)}") from error
        finally:
            worker.terminate()
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    def half_load_ms(self, rate: float) -> list[float]:
        """Milliseconds from submit to result at that rate."""
        answer = self._submitter.ask(
            do="at rate", rate=rate, seconds=self._plan.seconds, key=self._stack.address["key"]
        )
        return [1000 * float(one) for one in answer]

    def _until(self, table: str, count: int) -> float:
        deadline = time.monotonic() + DONE_S
        while self._count(table) < count:
            if time.monotonic() > deadline:
                raise PeerError(f"{self._count(table)} of {count} jobs in {table} were done in {DONE_S:g} s")
            time.sleep(0.02)
        return time.monotonic()

    def _count(self, table: str) -> int:
        (row,) = self._run(f"SELECT count(*) FROM {table} WHERE finished_at IS NOT NULL")
        return int(row[0])

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._database_url) as connection:
            result = connection.execute(statement)  # type: ignore[arg-type, unused-ignore]
            return result.fetchall() if result.description else []


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark; `engine` has no part in it."""
    plan = QUICK if quick else FULL
    say("starting the stack")
    with (
        Stack(
            "deterministic", {"HEADRACE_DETERMINISTIC_STEP_S": "0", "HEADRACE_MAX_NUM_SEQS": "64"}
        ) as stack,
        Peer("bench.submitter", log=stack.logs / "bench.log", env=stack.environment) as submitter,
    ):
        arms = Bench(stack, submitter, plan)
        commands = {} if quick else peers()
        if quick:
            commands = {"celery": peers()["celery"]}
        rates = _rates(plan, arms, commands, say)
        half = sorted(rates["ours"])[len(rates["ours"]) // 2] / 2
        latencies = arms.half_load_ms(half)
        say(f"at {half:.0f} jobs/s: p50 {percentile(latencies, 0.5):.1f} ms")
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, rates, latencies),
        arms={"plan": asdict(plan), "jobs_per_s": rates, "half_load_p99_ms": percentile(latencies, 0.99)},
    )


def _rates(
    plan: Plan, arms: Bench, commands: Mapping[str, Sequence[str]], say: Callable[[str], None]
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in ("ours", *commands)}
    arms.ours()  # to warm up
    for number in range(plan.rounds):
        names = list(rates) if number % 2 == 0 else list(reversed(rates))
        for name in names:
            rate = arms.ours() if name == "ours" else arms.naive(name, commands[name])
            rates[name].append(round(rate, 1))
            say(f"{name}: {rate:.0f} jobs/s")
    return rates


def rows(plan: Plan, rates: Mapping[str, Sequence[float]], latencies: Sequence[float]) -> list[Row]:
    """Build the rows."""
    targets = {"celery": "≥ 2", "arq": "≥ 10", "taskiq": ""}
    note = f"{plan.jobs} jobs an arm and round (20,000 in the recipe), deterministic engine, no model"
    made = [
        row(
            f"over_{name}",
            [ours / theirs for ours, theirs in zip(rates["ours"], rates[name], strict=True)],
            "ratio",
            target,
            note,
        )
        for name, target in targets.items()
        if name in rates
    ]
    half = f"open loop at half of our rate; low and high: p10 and p90; {note}"
    low, middle, high = (round(percentile(latencies, share), 2) for share in (0.1, 0.5, 0.9))
    return [*made, Row("submit_to_result_p50_ms", middle, low, high, "ms", "≤ 10", half)]
