"""What is said to be due, against the duties' own statements."""

import asyncio
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from control.rounds import Watch
from services.attempt import Holder, claim
from services.cancel import cancel
from services.create_batch import create_batch
from services.new_id import new_id
from services.submit import submit
from services.tell import claim_deliveries, queue_deliveries
from services.tend import expire, rescue, what_is_due
from storage.batches import NewBatch
from storage.due import Due
from storage.idempotency import Earlier
from storage.records import Caller
from tests.support.seeds import MODEL, end_lease, new_task, seed_task


async def nothing_streamed(task_id: str) -> int | None:
    return 0


async def test_a_lease_is_due_when_it_expired_until_it_is_rescued(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    await claim(database, [new.id], Holder("w1", MODEL, 30.0))
    assert (await what_is_due(database)).now == set()
    await end_lease(database, new.id)
    assert (await what_is_due(database)).now == {Due.LEASES}
    await rescue(database, limit=10, count_streamed=nothing_streamed)
    assert (await what_is_due(database)).now == set()


async def test_the_watch_looks_when_the_next_lease_ends_if_that_is_before_its_next_look(
    database: AsyncEngine, caller: Caller
) -> None:
    watch = Watch(database, tick_s=3600.0)
    await watch()
    resting = asyncio.create_task(watch.pause())
    await asyncio.sleep(0)
    assert not resting.done()
    resting.cancel()
    for lease_s in (900.0, 0.2):
        new = await seed_task(database, caller)
        await claim(database, [new.id], Holder("w1", MODEL, lease_s))
    await watch()
    await asyncio.wait_for(watch.pause(), 10)
    assert (await what_is_due(database)).now == {Due.LEASES}


async def test_a_lost_task_that_is_being_cancelled_is_due(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller)
    await claim(database, [new.id], Holder("w1", MODEL, 30.0))
    await cancel(database, caller.tenant_id, new.id)
    await end_lease(database, new.id)
    assert (await what_is_due(database)).now == {Due.LEASES}
    await rescue(database, limit=10, count_streamed=nothing_streamed)
    assert (await what_is_due(database)).now == set()


async def test_a_queued_task_past_its_deadline_is_due_until_it_expired(
    database: AsyncEngine, caller: Caller
) -> None:
    await submit(database, new_task(caller, deadline_s=-1.0))
    assert (await what_is_due(database)).now == {Due.DEADLINES}
    assert len(await expire(database, limit=10)) == 1
    assert (await what_is_due(database)).now == set()


async def test_a_webhook_is_due_to_be_queued_and_then_to_be_sent(
    database: AsyncEngine, caller: Caller
) -> None:
    task = replace(new_task(caller), webhook="https://example.com/hook")
    await submit(database, task)
    assert (await what_is_due(database)).now == set()
    await cancel(database, caller.tenant_id, task.id)
    assert (await what_is_due(database)).now == {Due.WEBHOOKS}
    await queue_deliveries(database, limit=10)
    assert (await what_is_due(database)).now == {Due.WEBHOOKS}
    await claim_deliveries(database, limit=10, per_tenant=10, busy=[], lease_s=60.0)
    assert (await what_is_due(database)).now == set()


@pytest.mark.parametrize("state", ["validating", "in_progress", "finalizing", "cancelling", "completed"])
async def test_a_batch_is_due_when_it_was_made_or_cancelled(
    database: AsyncEngine, caller: Caller, state: str
) -> None:
    batch = NewBatch(
        id=new_id("batch"),
        caller=caller,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        window_s=3600.0,
        metadata={},
        output_ttl_s=3600.0,
        input_file_id=new_id("file"),
        input_bytes=1,
    )
    await create_batch(database, batch, None, lambda batch: Earlier(batch.id, 200, None))
    async with database.begin() as connection:
        await connection.execute(sa.text("UPDATE batches SET state = :state"), {"state": state})
    assert (await what_is_due(database)).now == (
        {Due.BATCHES} if state in ("validating", "cancelling") else set()
    )
