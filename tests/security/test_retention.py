"""For how long prompts and outputs stay, and what stays of them."""

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import orjson
import pytest
import redis.asyncio
import sqlalchemy as sa
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from cli.stack.valkey import ValkeyServer
from control.retention import Retention
from core.digests import derive_key, digest_of, pads_of
from core.pricing import Usage
from core.states import TaskState
from services.attempt import Holder, claim, settle
from services.manage_tenants import change_tenant
from services.submit import submit
from services.tend import purge
from storage import files
from storage.batch_tables import batch_items
from storage.records import Ending
from storage.retention import Periods
from storage.streams import Append, EventStreams, Result
from tests.security.seeds import OPERATOR, SEEDS, World
from tests.support.seeds import MODEL, PEPPER, new_task

pytestmark = pytest.mark.usefixtures("http")  # `world.http`
KEY = derive_key(PEPPER, "purged bodies")
REQUEST, RESPONSE = '{"messages":[{"content":"the \\u0000 prompt, größer"}]}', '{"choices":["the answer"]}'
LONG = 1e9


@given(st.binary(max_size=200), st.text(max_size=200))
def test_the_halves_of_a_keyed_hash_make_the_whole_one(key: bytes, text: str) -> None:
    raw = text.encode("utf-8", "replace")
    inner, outer = pads_of(key)
    halves = hashlib.sha256(outer + hashlib.sha256(inner + raw).digest()).digest()
    assert halves == hmac.digest(key, raw, "sha256")


async def ended_task(world: World, *, store: bool = True) -> str:
    new = replace(new_task(world.owner, request=REQUEST), store=store)
    await submit(world.database, new)
    held = (await claim(world.database, [new.id], Holder("w", MODEL, 60.0)))[new.id]
    end = Ending(new.id, held.attempt, TaskState.COMPLETED, Usage(10, 0, 5), response=RESPONSE)
    assert await settle(world.database, [end]) == {new.id: TaskState.COMPLETED}
    return new.id


async def age(world: World, task_id: str, seconds: float) -> None:
    """Let a task have ended and been delivered that much earlier."""
    async with world.database.begin() as connection:
        await connection.execute(
            sa.text("""UPDATE tasks SET finished_at = finished_at - make_interval(secs => :s),
                       delivered_at = delivered_at - make_interval(secs => :s) WHERE id = :id"""),
            {"id": task_id, "s": seconds},
        )


async def purged(world: World, **periods: float) -> list[str]:
    given = Periods(**{"retention_s": LONG, "delivered_s": 60.0, "undelivered_s": LONG, **periods})
    return await purge(world.database, given, hash_key=KEY, limit=1000)


async def poll(world: World, task_id: str) -> httpx.Response:
    return await world.http.get(
        f"/v1/tasks/{task_id}", headers={"Authorization": f"Bearer {world.keys['read']}"}
    )


async def test_a_tenants_own_retention_goes_before_the_deployments(world: World) -> None:
    task_id = await ended_task(world)
    await age(world, task_id, 7200)
    assert task_id not in await purged(world)
    await change_tenant(world.database, OPERATOR, "owner", {"retention_s": 3600.0}, of="")
    try:
        assert task_id in await purged(world)
        kept = await ended_task(world)
        assert kept not in await purged(world, retention_s=0.0)  # in the other direction too
    finally:
        await change_tenant(world.database, OPERATOR, "owner", {"retention_s": None}, of="")
    assert (await poll(world, task_id)).status_code == 410


async def test_of_purged_bodies_lengths_and_keyed_hashes_stay(world: World) -> None:
    task_id = await ended_task(world)
    await age(world, task_id, 10)
    assert task_id in await purged(world, retention_s=5.0)
    async with world.database.connect() as connection:
        left = await connection.execute(
            sa.text("SELECT count(*) FROM task_payloads WHERE task_id = :id"), {"id": task_id}
        )
        assert left.scalar_one() == 0
    told = await world.http.get(
        f"/v1/admin/tasks/{task_id}", headers={"Authorization": f"Bearer {world.keys['admin']}"}
    )
    assert told.json()["purged_bodies"] == {
        "request_bytes": len(REQUEST.encode()),
        "request_hash": digest_of(REQUEST, KEY).hex(),
        "response_bytes": len(RESPONSE),
        "response_hash": digest_of(RESPONSE, KEY).hex(),
    }


async def test_what_is_not_to_be_stored_goes_a_minute_after_it_was_delivered(
    world: World, app: FastAPI
) -> None:
    task_id = await ended_task(world, store=False)
    assert task_id not in await purged(world)  # nobody has it yet
    answer = await poll(world, task_id)
    assert (answer.status_code, answer.json()["response"]) == (200, orjson.loads(RESPONSE))
    await app.state.headrace.deliveries.write()
    assert task_id not in await purged(world)
    assert (await poll(world, task_id)).status_code == 200  # an answer that broke off can be had again
    await age(world, task_id, 61)
    assert task_id in await purged(world)
    assert (await poll(world, task_id)).status_code == 410


async def test_what_is_not_to_be_stored_and_nobody_asks_for_goes_after_its_time(world: World) -> None:
    task_id = await ended_task(world, store=False)
    await age(world, task_id, 100)
    assert task_id not in await purged(world)
    assert task_id in await purged(world, undelivered_s=99.0)


async def test_delivery_changes_nothing_for_what_is_stored(world: World, app: FastAPI) -> None:
    task_id = await ended_task(world)
    await poll(world, task_id)
    assert task_id not in app.state.headrace.deliveries.waiting
    await age(world, task_id, 3600)
    assert task_id not in await purged(world)


async def test_a_tenant_that_stores_nothing_is_not_overruled(world: World) -> None:
    await change_tenant(world.database, OPERATOR, "owner", {"store": False}, of="")
    try:
        task_id = await ended_task(world, store=True)
    finally:
        await change_tenant(world.database, OPERATOR, "owner", {"store": True}, of="")
    await age(world, task_id, 100)
    assert task_id in await purged(world, undelivered_s=99.0)


@pytest.fixture
async def streams(valkey_server: ValkeyServer) -> AsyncIterator[EventStreams]:
    client = redis.asyncio.Redis.from_url(valkey_server.url_of(1))
    yield EventStreams(client, "hr", 60.0)
    await client.aclose()


async def test_redis_keeps_nothing_of_what_is_purged(
    world: World, app: FastAPI, streams: EventStreams
) -> None:
    task_id = await ended_task(world, store=False)
    await streams.append([Append(task_id, 1, 2, "task.delta", b"{}", result=Result(RESPONSE))])
    await streams.close(task_id, "task.completed", b'{"text": "the answer"}')
    settings = app.state.headrace.settings.model_copy(update={"undelivered_s": 1.0})
    await age(world, task_id, 10)
    assert (await Retention(world.database, streams, settings=settings)())["purged"] >= 1
    assert await streams.get_result(task_id) is None
    assert await streams.read(task_id) == []


async def test_a_batchs_line_stays_until_its_results_have_it_and_is_delivered_by_that(world: World) -> None:
    batch_id = await SEEDS["batch_id"](world)
    kept, dropped = await ended_task(world), await ended_task(world, store=False)
    async with world.database.begin() as connection:
        for line, task_id in enumerate((kept, dropped), 1):
            await connection.execute(
                batch_items.insert().values(
                    batch_id=batch_id, line=line, custom_id=str(line), task_id=task_id
                )
            )
    for task_id in (kept, dropped):
        await age(world, task_id, 100)
    gone = await purged(world, retention_s=1.0, undelivered_s=1.0)
    assert {kept, dropped}.isdisjoint(gone)  # nothing of a batch's results is lost to retention
    async with world.database.begin() as connection:
        written = batch_items.update().where(batch_items.c.batch_id == batch_id)
        await connection.execute(written.values(part=1, outcome="completed"))
    assert dropped in (gone := await purged(world))
    assert kept not in gone


async def test_a_tenants_files_go_by_its_retention_too(world: World) -> None:
    file_id = await SEEDS["file_id"](world)

    async def status() -> int:
        headers = {"Authorization": f"Bearer {world.keys['read']}"}
        return (await world.http.get(f"/v1/files/{file_id}", headers=headers)).status_code

    async def condemn() -> None:
        async with world.database.begin() as connection:
            await files.condemn_files(connection, unfinished_s=LONG, limit=100)

    async with world.database.begin() as connection:
        aged = sa.text("UPDATE files SET created_at = created_at - interval '2 hours' WHERE id = :id")
        await connection.execute(aged, {"id": file_id})
    await condemn()
    assert await status() == 200
    await change_tenant(world.database, OPERATOR, "owner", {"retention_s": 3600.0}, of="")
    try:
        await condemn()
    finally:
        await change_tenant(world.database, OPERATOR, "owner", {"retention_s": None}, of="")
    assert await status() == 404
