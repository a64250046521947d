"""The books under faults: with prices and budgets on, whatever is killed, every charge is exact and nothing is held."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from core.budgets import Period
from services.manage_budgets import put_budget
from services.manage_tariffs import add_tariff
from storage.audit import Actor
from tests.accounting import books
from tests.chaos import test_partition, test_processes, test_stores, test_worker_killed
from tests.chaos.lab import MODEL, Lab, Run, new_lab
from tests.support.seeds import opened
from tests.support.waiting import eventually, eventually_async

ADMIN = Actor("test")
# odd prices, so that a rounding in the wrong place shows
PRICES = {
    "prompt_usd_micros": 1_234_567,
    "cached_usd_micros": 345_678,
    "output_usd_micros": 9_876_543,
    "engine_usd_micros": 77_777,
    "engine_us_per_token": 200_000,
}


@asynccontextmanager
async def _open(folder: Path, *, durable: bool) -> AsyncIterator[Lab]:
    lab = new_lab(folder, durable=durable)
    try:
        await lab.prepare()
        async with opened(lab.postgres.url) as database:
            await add_tariff(database, ADMIN, MODEL, PRICES, valid_from=None, valid_until=None)
            for period in Period:
                terms = {"soft_usd_micros": 1, "hard_usd_micros": 10**12, "webhook": None}
                await put_budget(database, ADMIN, tenant="default", key=None, period=period, terms=terms)
        await asyncio.gather(lab.start_api(), lab.start_control())
        yield lab
    finally:
        lab.stop()
        lab.valkey.stop()
        lab.postgres.stop()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with _open(tmp_path, durable=False) as lab:
        yield lab


async def check(lab: Lab) -> None:
    """Wait until nothing is open, then hold the books against the tasks; the reconciliation agrees."""
    open_ = "SELECT count(*) FROM tasks WHERE finished_at IS NULL"
    await eventually(lambda: lab.query(open_)[0][0] == 0, 60.0, "every task ended")
    async with opened(lab.postgres.url) as database, database.connect() as connection:
        await books.check(connection, at_rest=True)
    charged = lab.query("SELECT count(*), sum(cost_usd_micros), sum(engine_us) FROM ledger_entries")[0]
    assert charged[0] > 0 and charged[1] > 0 and charged[2] > 0, charged
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli", "reconcile"],
        env=lab.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def test_the_books_are_exact_after_a_worker_was_killed(lab: Lab) -> None:
    victim = await lab.start_worker("w1")
    await lab.start_worker("w2")
    run = Run(lab)
    await run.begin()
    await lab.running_on("w1")
    noted = "SELECT count(*) FROM tasks WHERE state = 'in_progress' AND worker = 'w1' AND engine_us > 0"
    await eventually(lambda: lab.query(noted)[0][0] > 0, what="w1 told what it used, as it renews its leases")
    await victim.kill()
    await run.finish()
    await run.check()
    assert (
        lab.query("SELECT count(*) FROM attempts WHERE failure = 'worker_lost' AND engine_us > 0")[0][0] > 0
    )
    await check(lab)


async def test_the_books_are_exact_after_an_engine_died_and_what_it_lost_is_free(lab: Lab) -> None:
    await lab.start_worker("w1")
    run, poison = Run(lab, max_tokens=24), Run(lab, count=0)
    poison.bodies = [test_processes.fault("<<fault:die>>")]
    await asyncio.gather(run.begin(), poison.begin())
    await asyncio.gather(run.finish(120), poison.finish(120))
    (entry,) = lab.query("SELECT * FROM ledger_entries WHERE task_id = :id", id=poison.ids[0])
    assert (entry.output_tokens, entry.engine_us, entry.cost_usd_micros) == (0, 0, 0)
    await check(lab)


async def test_the_books_are_exact_after_a_storm_of_cancels(lab: Lab) -> None:
    await lab.start_worker("w1", HEADRACE_MAX_NUM_SEQS="8")  # most of them wait when the storm comes
    run = Run(lab, count=120, max_tokens=400)
    await run.begin()
    await lab.running_on("w1")
    headers = {"Authorization": f"Bearer {lab.api_key}"}
    few = httpx.Limits(max_connections=20)
    async with httpx.AsyncClient(base_url=lab.api_url, headers=headers, timeout=30, limits=few) as http:
        answers = await asyncio.gather(*(http.post(f"/v1/tasks/{id_}/cancel") for id_ in run.ids))
    assert {answer.status_code for answer in answers} <= {200, 202}
    await run.finish()
    cancelled = lab.query(
        "SELECT count(*) AS tasks, count(*) FILTER (WHERE l.cost_usd_micros > 0) AS paid FROM tasks t"
        " JOIN ledger_entries l ON l.task_id = t.id WHERE t.state = 'cancelled'"
    )[0]
    assert cancelled.tasks > 60, "queued and running ones"
    assert 1 <= cancelled.paid < cancelled.tasks, "those that had generated something pay for it"
    await check(lab)


async def test_engine_time_is_that_of_the_attempts_once_the_workers_have_ended(lab: Lab) -> None:
    worker = await lab.start_worker("w1")
    run = Run(lab, count=40)
    await run.begin()
    await run.finish()
    worker.process.terminate()
    assert await worker.ended() == 0
    await check(lab)
    (time,) = lab.query("SELECT * FROM engine_time")
    assert time.ended
    assert time.busy_us == lab.query("SELECT sum(engine_us) FROM ledger_entries")[0][0]
    wall_us = time.idle_us + time.busy_us + time.overhead_us
    assert 0 < wall_us < 120_000_000


Fault = Callable[..., Awaitable[None]]
# no worker runs in them and the last store stays away: there are no books to hold against anything
UNCHARGED = {test_stores.test_streams_answer_503_while_redis_is_away_and_tasks_can_still_be_polled}
FAULTS: list[Fault] = [
    function
    for module in (test_processes, test_stores, test_partition, test_worker_killed)
    for name, function in vars(module).items()
    if name.startswith("test_") and list(inspect.signature(function).parameters) in (["lab"], ["durable_lab"])
    if function not in UNCHARGED
]


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.removeprefix("test_"))
async def test_the_books_are_exact_after_every_fault(fault: Fault, tmp_path: Path) -> None:
    (parameter,) = inspect.signature(fault).parameters
    async with _open(tmp_path, durable=parameter == "durable_lab") as lab:
        await fault(lab)

        async def reachable() -> bool:
            try:
                async with httpx.AsyncClient(base_url=lab.api_url, timeout=5) as http:
                    return (await http.get("/healthz")).is_success
            except httpx.TransportError:
                return False

        await eventually_async(reachable, what="the API is there again")
        await check(lab)
