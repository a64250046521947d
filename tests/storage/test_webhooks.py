"""Deliveries of webhooks on the real Postgres: queued from the rows, tried until taken, never lost."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from standardwebhooks.webhooks import Webhook

from control.webhooks import Webhooks
from core.batches import FINAL, BatchState
from runtime.sending import WebhookSender
from services.cancel import cancel
from services.create_batch import create_batch
from services.manage_webhooks import (
    create_secret,
    enable,
    end_secret,
    list_deliveries,
    list_disabled,
    why_unusable,
)
from services.new_id import new_id
from services.submit import submit
from services.tell import claim_deliveries, queue_deliveries
from services.tend import forget_deliveries
from storage import batches, webhooks
from storage.batches import NewBatch
from storage.idempotency import Earlier
from storage.records import Caller, NewResponse
from tests.support.receiver import Receiver
from tests.support.seeds import new_task, seed_caller

PEPPER = b"pepper"


@asynccontextmanager
async def loop(database: AsyncEngine) -> AsyncIterator[Webhooks]:
    made = Webhooks(database, WebhookSender(private_allowed=True), PEPPER)
    try:
        yield made
    finally:
        await made.close()


async def ended(database: AsyncEngine, caller: Caller, url: str, *, response: bool = False) -> str:
    """A final task with a webhook; the id that its owner knows it by."""
    about = NewResponse(new_id("resp"), None, background=True, stored=True, input="[]", request="{}")
    task = replace(new_task(caller), webhook=url, metadata={"a": "b"}, response=about if response else None)
    await submit(database, task)
    await cancel(database, caller.tenant_id, task.id)
    return about.id if response else task.id


async def secret(database: AsyncEngine, caller: Caller, overlap_s: float = 60.0) -> tuple[str, str]:
    secret_id, text, _ = await create_secret(database, caller.tenant_id, pepper=PEPPER, overlap_s=overlap_s)
    return secret_id, text


async def due_now(database: AsyncEngine) -> None:
    """Let the time until the next tries have passed."""
    async with database.begin() as connection:
        await connection.execute(
            sa.text("UPDATE webhook_deliveries SET next_at = now() WHERE next_at IS NOT NULL")
        )


async def delivery(database: AsyncEngine, caller: Caller) -> Any:
    (row,) = await list_deliveries(database, caller.tenant_id, limit=10)
    return row


@pytest.mark.parametrize("response", [False, True])
async def test_the_end_of_a_task_is_told_once_and_signed(
    database: AsyncEngine, caller: Caller, response: bool
) -> None:
    _, text = await secret(database, caller)
    async with Receiver() as receiver, loop(database) as tick:
        object_id = await ended(database, caller, receiver.url, response=response)
        assert (await tick())["queued"] == 1
        await tick.settled()
        assert (await tick())["queued"] == 0
        (got,) = receiver.got
    event = Webhook(text).verify(got.body, got.headers)
    about = (
        {"id": object_id} if response else {"id": object_id, "status": "cancelled", "metadata": {"a": "b"}}
    )
    assert (event["type"], event["data"]) == ("response.cancelled" if response else "task.cancelled", about)
    row = await delivery(database, caller)
    assert (row.state, row.next_at, [one["status_code"] for one in row.tries]) == ("delivered", None, [200])
    assert got.headers["webhook-id"] == row.id == event["id"]


async def batch_ended(database: AsyncEngine, caller: Caller, url: str, state: BatchState) -> str:
    """A batch with a webhook that came to a final state as the control loops bring it there."""
    batch_id = new_id("batch")
    window_s = 0.0 if state is BatchState.EXPIRED else 3600.0
    new = NewBatch(
        *(batch_id, caller, "/v1/chat/completions", "1h", window_s, {}, 60.0, new_id("file"), 1), webhook=url
    )
    await create_batch(database, new, None, lambda batch: Earlier(batch.id, 200, None))
    async with database.begin() as connection:
        if state is BatchState.FAILED:
            assert await batches.refuse(connection, batch_id, [])
        else:
            if state is BatchState.CANCELLED:
                assert await batches.ask_cancel(connection, caller.tenant_id, batch_id)
            files = {"output_file_id": None, "error_file_id": None}
            assert await batches.end(connection, batch_id, state, parts=0, **files)
    return batch_id


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_the_end_of_a_batch_is_told_once_and_signed(
    database: AsyncEngine, caller: Caller, state: BatchState
) -> None:
    _, text = await secret(database, caller)
    async with Receiver() as receiver, loop(database) as tick:
        batch_id = await batch_ended(database, caller, receiver.url, state)
        assert (await tick())["queued"] == 1
        await tick.settled()
        assert (await tick())["queued"] == 0
        (got,) = receiver.got
    event = Webhook(text).verify(got.body, got.headers)
    assert (event["type"], event["data"]) == (f"batch.{state}", {"id": batch_id})
    (row,) = await list_deliveries(database, caller.tenant_id, limit=9, batch_id=batch_id)
    assert (row.state, row.task_id, row.batch_id) == ("delivered", None, batch_id)


async def test_a_batch_that_is_open_or_wants_no_webhook_is_not_told_of(
    database: AsyncEngine, caller: Caller
) -> None:
    for webhook in (None, "http://127.0.0.1:1/"):
        new = NewBatch(
            *(new_id("batch"), caller, "/v1/chat/completions", "1h", 60.0, {}, 60.0, new_id("file"), 1),
            webhook=webhook,
        )
        await create_batch(database, new, None, lambda batch: Earlier(batch.id, 200, None))
    async with database.begin() as connection:
        await connection.execute(sa.text("UPDATE batches SET state = 'completed' WHERE webhook IS NULL"))
    assert await queue_deliveries(database, limit=10) == 0


async def test_a_crash_while_a_batchs_delivery_is_queued_loses_none(
    database: AsyncEngine, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secret(database, caller)
    batch_id = await batch_ended(database, caller, "http://127.0.0.1:1/", BatchState.COMPLETED)

    async def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(webhooks, "which_disabled", crash)
        with pytest.raises(KeyboardInterrupt):
            await queue_deliveries(database, limit=10)
    assert await queue_deliveries(database, limit=10) == 1
    (row,) = await list_deliveries(database, caller.tenant_id, limit=9)
    assert (row.state, row.batch_id, row.type) == ("pending", batch_id, "batch.completed")


async def test_a_failed_delivery_is_tried_again_under_its_id_until_it_is_taken(
    database: AsyncEngine, caller: Caller
) -> None:
    await secret(database, caller)
    async with Receiver((500, ""), (302, "Location: /"), (204, "")) as receiver, loop(database) as tick:
        await ended(database, caller, receiver.url)
        for _ in range(4):
            await tick()
            await tick.settled()
            await due_now(database)
    assert len(receiver.got) == 3
    assert len({(got.headers["webhook-id"], got.body) for got in receiver.got}) == 1
    row = await delivery(database, caller)
    assert (row.state, [one["status_code"] for one in row.tries]) == ("delivered", [500, 302, 204])


async def test_a_receiver_is_not_bothered_before_the_time_it_asked_for(
    database: AsyncEngine, caller: Caller
) -> None:
    await secret(database, caller)
    async with Receiver((503, "Retry-After: 600")) as receiver, loop(database) as tick:
        await ended(database, caller, receiver.url)
        await tick()
        await tick.settled()
    row = await delivery(database, caller)
    assert row.state == "pending"
    assert 590 < (row.next_at - row.created_at).total_seconds() < 660


async def test_the_last_try_leaves_it_failed(database: AsyncEngine, caller: Caller) -> None:
    await secret(database, caller)
    async with Receiver((500, "")) as receiver, loop(database) as tick:
        await ended(database, caller, receiver.url)
        for _ in range(12):
            await tick()
            await tick.settled()
            await due_now(database)
    assert len(receiver.got) == 11
    assert (await delivery(database, caller)).state == "failed"


async def test_410_ends_a_url_until_its_owner_enables_it(database: AsyncEngine, caller: Caller) -> None:
    await secret(database, caller)
    async with Receiver((410, ""), (200, "")) as receiver, loop(database) as tick:
        await ended(database, caller, receiver.url)
        await tick()
        await tick.settled()
        await ended(database, caller, receiver.url)
        await tick()
        await tick.settled()
        assert len(receiver.got) == 1
        assert [row.state for row in await list_deliveries(database, caller.tenant_id, limit=9)] == [
            "disabled"
        ] * 2
        ((disabled_id, url, _),) = await list_disabled(database, caller.tenant_id)
        assert (url, "410" in (await why_unusable(database, caller.tenant_id, url) or "")) == (
            receiver.url,
            True,
        )
        assert await enable(database, caller.tenant_id, disabled_id)
        assert await why_unusable(database, caller.tenant_id, url) is None
        await ended(database, caller, receiver.url)
        await tick()
        await tick.settled()
    assert len(receiver.got) == 2


async def test_what_a_lost_process_claimed_is_sent_by_the_next(database: AsyncEngine, caller: Caller) -> None:
    await secret(database, caller)
    async with Receiver() as receiver, loop(database) as tick:
        await ended(database, caller, receiver.url)
        await queue_deliveries(database, limit=10)
        lost = await claim_deliveries(database, limit=10, per_tenant=10, busy=[], lease_s=60.0)
        await tick()
        await tick.settled()
        assert (len(lost), receiver.got) == (1, [])  # its lease lasts
        await due_now(database)
        await tick()
        await tick.settled()
    assert [got.headers["webhook-id"] for got in receiver.got] == [lost[0].id]


async def test_a_tenant_with_many_due_does_not_hold_the_others_up(
    database: AsyncEngine, caller: Caller
) -> None:
    other = await seed_caller(database, "other")
    for _ in range(5):
        await ended(database, caller, "http://127.0.0.1:1/")
    await ended(database, other, "http://127.0.0.1:1/")
    await queue_deliveries(database, limit=10)
    first = await claim_deliveries(database, limit=3, per_tenant=2, busy=[], lease_s=60.0)
    assert sorted(one.tenant_id for one in first) == sorted([caller.tenant_id] * 2 + [other.tenant_id])
    assert (
        await claim_deliveries(database, limit=3, per_tenant=2, busy=[caller.tenant_id], lease_s=60.0) == []
    )


@pytest.mark.shows("webhooks-rotated")
async def test_rotation_signs_with_both_until_the_overlap_ends(database: AsyncEngine, caller: Caller) -> None:
    old_id, old = await secret(database, caller)
    _, new = await secret(database, caller, overlap_s=60.0)
    async with Receiver() as receiver, loop(database) as tick:
        await ended(database, caller, receiver.url)
        await tick()
        await tick.settled()
        for text in (old, new):
            assert Webhook(text).verify(receiver.got[0].body, receiver.got[0].headers)
        assert await end_secret(database, caller.tenant_id, old_id)
        await ended(database, caller, receiver.url)
        await tick()
        await tick.settled()
        assert len(receiver.got[1].headers["webhook-signature"].split(" ")) == 1
        assert json.loads(receiver.got[1].body) == Webhook(new).verify(
            receiver.got[1].body, receiver.got[1].headers
        )


async def test_ended_deliveries_are_forgotten_after_a_time(database: AsyncEngine, caller: Caller) -> None:
    await secret(database, caller)
    async with Receiver() as receiver, loop(database) as tick:
        await ended(database, caller, receiver.url)
        await tick()
        await tick.settled()
        await ended(database, caller, "http://127.0.0.1:1/")
        await queue_deliveries(database, limit=10)
    assert await forget_deliveries(database, older_s=0.0, limit=10) == 1
    assert (await delivery(database, caller)).state == "pending"
