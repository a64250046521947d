"""A batch's cursor, lines, parts and counts move together or not at all, whoever else is at it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from control.batch_expansion import BatchExpansion, Limits
from control.batch_results import BatchResults
from control.batch_validation import BatchValidation
from control.dispatch import Dispatch
from core.batches import BatchState
from core.files import Purpose
from core.pricing import Usage
from core.states import TaskState
from runtime.chat_template import ModelTokenizer
from runtime.ended import Endings
from services import attempt
from services.attempt import Holder
from services.create_batch import create_batch
from services.end_batch import cancel_batch, end_batch, remove_leftovers
from services.new_id import new_id
from services.read_batches import find_batch
from services.store_file import finish_file, storing
from services.workers import describe_worker
from services.write_results import write_ended
from storage.batch_items import OvertakenError
from storage.batches import Batch, NewBatch
from storage.blobs import Blobs, file_key
from storage.credit import Ceilings
from storage.files import NewFile
from storage.idempotency import Earlier
from storage.presence import WorkerRow
from storage.records import Caller, Ending
from storage.streams import EventStreams
from tests.batches.lines import jsonl, request
from tests.support.seeds import MODEL, seed_caller
from workers.deterministic_output import make_model

LINES = 40
LIVE = 16


def instructed(name: str, most: int) -> dict[str, object]:
    """A request whose beginning others share."""
    messages = [{"role": "system", "content": f"You are {name}."}, {"role": "user", "content": "Hello"}]
    return {"model": MODEL, "messages": messages, "max_tokens": most}


class Hands:
    """A batch, and the loops that work on it, called one by one."""

    def __init__(self, database: AsyncEngine, blobs: Blobs, redis: Redis, caller: Caller) -> None:
        self.database, self.blobs, self.redis, self.caller = database, blobs, redis, caller
        self.validate = BatchValidation(database, blobs, max_line_bytes=10_000)
        endings = Endings(database, b"key", None)
        streams = EventStreams(redis, "hr", 60)
        self.results = BatchResults(database, blobs, streams, endings, max_line_bytes=10_000)
        self.id = ""

    def expansion(self) -> BatchExpansion:
        """The loop of a process that just took the lead."""
        return BatchExpansion(self.database, self.blobs, Limits(LIVE, 10_000, 3), lambda: None)

    async def begin(self, lines: int = LINES) -> None:
        """Accept and validate a batch."""
        await self.begin_with([request(MODEL, f"id-{i}", f"Question {i}") for i in range(lines)])

    async def begin_with(self, lines: list[dict[str, object]], *, in_file_order: bool = False) -> None:
        """Accept and validate a batch of these."""
        content = jsonl(lines)
        file_id = new_id("file")
        new = NewFile(file_id, self.caller.tenant_id, Purpose.BATCH, "a.jsonl", None)
        async with storing(self.database, self.blobs, new) as writer:
            await writer.write(content)
        await finish_file(self.database, file_id, size_bytes=len(content))
        self.id = new_id("batch")
        batch = NewBatch(
            id=self.id,
            caller=self.caller,
            endpoint="/v1/chat/completions",
            completion_window="1h",
            window_s=3600.0,
            metadata={},
            output_ttl_s=3600.0,
            input_file_id=file_id,
            input_bytes=len(content),
            in_file_order=in_file_order,
        )
        await create_batch(self.database, batch, None, lambda batch: Earlier(batch.id, 200, None))
        await self.validate()

    def dispatch(self, publisher: Any) -> Dispatch:
        """The dispatcher of a process that just took the lead."""
        ceilings = Ceilings(self.redis, "hr")
        return Dispatch(
            self.database,
            publisher,
            ceilings,
            EventStreams(self.redis, "hr", 60),
            Endings(self.database, b"key", None),
            order="fair",
            idle_s=1.0,
            older_s=-1.0,
        )

    async def batch(self) -> Batch:
        """As it is now."""
        found = await find_batch(self.database, self.caller.tenant_id, self.id)
        assert found is not None
        return found

    async def run_queued(self) -> int:
        """Claim and complete every queued task, as a worker would."""
        ids = await self.query("SELECT id FROM tasks WHERE state = 'queued' ORDER BY id")
        claims = await attempt.claim(self.database, [row.id for row in ids], Holder("w", MODEL, 10.0))
        await attempt.settle(
            self.database,
            [
                Ending(
                    claim.task_id, claim.attempt, TaskState.COMPLETED, Usage(10, 4, 5), 7, response='{"a":1}'
                )
                for claim in claims.values()
            ],
        )
        return len(claims)

    async def query(self, statement: str) -> list[sa.Row[tuple[object, ...]]]:
        """Ask the database."""
        async with self.database.connect() as connection:
            return list(await connection.execute(sa.text(statement)))

    async def lines_of(self, file_id: str | None) -> list[dict[str, object]]:
        """The lines of a result file."""
        if file_id is None:
            return []
        async with aclosing(self.blobs.reading(file_key(file_id))) as blocks:
            content = b"".join([block async for block in blocks])
        return [json.loads(line) for line in content.splitlines()]


@pytest.fixture
async def hands(
    database: AsyncEngine, blobs: Blobs, streams_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Hands]:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    ModelTokenizer(folder)
    caller = await seed_caller(database)
    async with database.begin() as connection:
        await connection.execute(sa.text("UPDATE models SET path = :path"), {"path": str(folder)})
    redis = Redis.from_url(streams_url)
    yield Hands(database, blobs, redis, caller)
    await redis.aclose()


async def test_a_batch_has_never_more_open_tasks_than_it_may(hands: Hands) -> None:
    await hands.begin()
    expand, seen = hands.expansion(), []
    while (batch := await hands.batch()).state is BatchState.IN_PROGRESS:
        await expand()
        seen.append((await hands.query("SELECT count(*) FROM tasks WHERE finished_at IS NULL"))[0][0])
        await hands.run_queued()
        await hands.results()
    assert batch.state is BatchState.COMPLETED
    assert seen == [16, 16, 8]
    assert (batch.total, batch.completed, batch.failed) == (LINES, LINES, 0)
    lines = await hands.lines_of(batch.output_file_id)
    assert sorted(str(line["custom_id"]) for line in lines) == sorted(f"id-{i}" for i in range(LINES))


@pytest.mark.parametrize("in_file_order", [True, False])
async def test_lines_go_as_they_stand_or_by_prefix_and_longest_first(
    hands: Hands, in_file_order: bool
) -> None:
    lines = [
        request(MODEL, f"{name}-{most}", "") | {"body": instructed(name, most)}
        for name, most in [("a", 5), ("b", 9), ("a", 20), ("b", 30), ("a", 10)]
    ]
    await hands.begin_with(lines, in_file_order=in_file_order)
    await hands.expansion()()
    sent: list[str] = []

    class Recorder:
        def publish_many(self, wakeups: Any) -> None:
            sent.extend(wakeup.task_id for wakeup in wakeups)

    worker = WorkerRow("w1", MODEL, "deterministic", "1", "short,medium,long", 8, 0, "ready")
    await describe_worker(hands.database, worker)
    await hands.dispatch(Recorder())()
    names = dict(await hands.query("SELECT task_id, custom_id FROM batch_items"))
    in_file = [line["custom_id"] for line in lines]
    longest_first = ["b-30", "b-9", "a-20", "a-10", "a-5"]
    assert [names[task_id] for task_id in sent] == (in_file if in_file_order else longest_first)


async def test_usage_and_cost_are_the_sums_of_the_ledger_at_every_moment(hands: Hands) -> None:
    await hands.begin()
    expand = hands.expansion()
    while True:
        await expand()
        await hands.run_queued()
        for _ in range(2):  # before and after what ended is written
            batch = await hands.batch()
            row = (
                await hands.query(
                    "SELECT count(*) AS lines, sum(prompt_tokens) AS prompt, sum(cached_tokens) AS cached,"
                    " sum(output_tokens) AS output, sum(cost_usd_micros) AS cost FROM ledger_entries"
                )
            )[0]
            assert batch.completed == row.lines
            assert batch.usage == Usage(int(row.prompt), int(row.cached), int(row.output))
            assert batch.cost_usd_micros == row.cost
            await hands.results()
        if batch.state is BatchState.COMPLETED:
            break


async def test_two_leaders_at_once_double_no_line(hands: Hands) -> None:
    await hands.begin()
    one, other = hands.expansion(), hands.expansion()
    while (await hands.batch()).state is BatchState.IN_PROGRESS:
        await asyncio.gather(one(), other())
        await hands.run_queued()
        await asyncio.gather(hands.results(), hands.results())
    batch = await hands.batch()
    assert (batch.completed, batch.failed) == (LINES, 0)
    assert (await hands.query("SELECT count(*) FROM tasks"))[0][0] == LINES
    lines = await hands.lines_of(batch.output_file_id)
    assert sorted(str(line["custom_id"]) for line in lines) == sorted(f"id-{i}" for i in range(LINES))
    assert (await hands.query("SELECT count(*) FROM files WHERE state = 'ready'"))[0][0] == 2


async def test_a_part_that_was_written_and_never_noted_is_written_again(hands: Hands) -> None:
    await hands.begin(10)
    await hands.expansion()()
    await hands.run_queued()
    batch = await hands.batch()
    # as a process that was killed between the part and its row leaves it
    async with hands.blobs.writing(f"parts/{batch.id}/000000-lost-output") as writer:
        await writer.write(b'{"custom_id": "id-0"}\n')
    await hands.results()
    done = await hands.batch()
    assert len(await hands.lines_of(done.output_file_id)) == 10
    assert await hands.blobs.count("parts") == 2
    assert (await remove_leftovers(hands.database, hands.blobs, retention_s=60, limit=10))["batches"] == 1
    assert await hands.blobs.count("parts") == 0
    assert (await remove_leftovers(hands.database, hands.blobs, retention_s=0, limit=10))["lines"] == 10


async def test_what_was_overtaken_leaves_neither_rows_nor_bytes(hands: Hands) -> None:
    await hands.begin(10)
    await hands.expansion()()
    await hands.run_queued()
    stale = await hands.batch()
    await write_ended(hands.database, hands.blobs, stale, stale.parts)
    before = await hands.blobs.count("parts")
    with pytest.raises(OvertakenError):
        await end_batch(hands.database, hands.blobs, stale)
    async with hands.database.begin() as connection:
        await connection.execute(sa.text("UPDATE batch_items SET part = NULL, outcome = NULL WHERE line = 1"))
    with pytest.raises(OvertakenError):
        await write_ended(hands.database, hands.blobs, stale, stale.parts)
    assert await hands.blobs.count("parts") == before
    assert (await hands.batch()).completed == 10 + 1  # the row put back by hand is counted as not yet written


async def test_lines_that_never_ran_are_named_when_a_batch_is_cancelled(hands: Hands) -> None:
    await hands.begin()
    await hands.expansion()()
    assert await cancel_batch(hands.database, hands.caller.tenant_id, hands.id)
    assert not await cancel_batch(hands.database, hands.caller.tenant_id, hands.id)
    await hands.expansion()()
    await hands.results()
    batch = await hands.batch()
    assert (batch.state, batch.completed, batch.failed, batch.cost_usd_micros) == (
        BatchState.CANCELLED,
        0,
        LINES,
        0,
    )
    lines = await hands.lines_of(batch.error_file_id)
    assert sorted(str(line["custom_id"]) for line in lines) == sorted(f"id-{i}" for i in range(LINES))
    assert (await hands.query("SELECT DISTINCT state FROM tasks"))[0][0] == "cancelled"


async def test_a_batch_cancelled_before_it_was_looked_at_just_ends(hands: Hands) -> None:
    await hands.begin()
    await hands.query("SELECT 1")
    async with hands.database.begin() as connection:
        await connection.execute(sa.text("UPDATE batches SET state = 'validating', model = NULL, total = 0"))
    assert await cancel_batch(hands.database, hands.caller.tenant_id, hands.id)
    await hands.validate()
    await hands.results()
    batch = await hands.batch()
    assert (batch.state, batch.output_file_id, batch.error_file_id) == (BatchState.CANCELLED, None, None)


async def test_a_grant_s_bound_on_open_tasks_holds_for_batches_too(hands: Hands) -> None:
    async with hands.database.begin() as connection:
        await connection.execute(sa.text("UPDATE grants SET max_open_tasks = 3"))
    await hands.begin(10)
    expand, seen = hands.expansion(), []
    while (batch := await hands.batch()).state is BatchState.IN_PROGRESS:
        await expand()
        await expand()
        seen.append((await hands.query("SELECT count(*) FROM tasks WHERE finished_at IS NULL"))[0][0])
        await hands.run_queued()
        await hands.results()
    assert (batch.state, batch.completed) == (BatchState.COMPLETED, 10)
    assert max(seen) == 3


async def put_budget(hands: Hands, hard_usd_micros: int) -> None:
    statement = (
        "INSERT INTO budgets (id, tenant_id, period, hard_usd_micros) VALUES ('b', :tenant, 'month', :hard)"
    )
    async with hands.database.begin() as connection:
        await connection.execute(
            sa.text(statement), {"tenant": hands.caller.tenant_id, "hard": hard_usd_micros}
        )


async def test_lines_wait_while_open_tasks_hold_the_budget_and_are_refused_once_it_is_spent(
    hands: Hands,
) -> None:
    await put_budget(hands, 20)
    await hands.begin(30)
    expand = hands.expansion()
    for _ in range(40):
        await expand()
        taken = (await hands.query("SELECT count(*) FROM tasks WHERE finished_at IS NULL"))[0][0]
        assert taken <= LIVE
        await hands.run_queued()
        await hands.results()
        batch = await hands.batch()
        if batch.state is not BatchState.IN_PROGRESS:
            break
    assert batch.state is BatchState.COMPLETED
    assert batch.completed + batch.failed == 30 and batch.completed and batch.failed
    lines = await hands.lines_of(batch.error_file_id)
    codes = {line["response"]["body"]["error"]["code"] for line in lines}  # type: ignore[index]
    assert codes == {"budget_exhausted"}
