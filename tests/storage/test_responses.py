"""Responses on the real stores: what a deleted one said is gone, everywhere."""

from dataclasses import replace

import pytest
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from control.retention import Retention
from runtime.settings import Settings
from services.cancel import cancel
from services.look_up import look_up
from services.new_id import new_id
from services.recall import delete_response, find_response, list_turns, read_exchange
from services.submit import submit
from storage.records import Caller, NewResponse
from storage.streams import Append, EventStreams, Result
from tests.support.seeds import new_task, seed_caller


async def response(
    database: AsyncEngine, caller: Caller, *, previous: str | None = None, stored: bool = True
) -> tuple[str, str]:
    """A response and its task, both ids; the task is still queued."""
    about = NewResponse(new_id("resp"), previous, True, stored, input=f'["{previous}"]', request="{}")
    task = replace(new_task(caller), response=about, metadata={"a": "b"})
    await submit(database, task)
    return about.id, task.id


@pytest.mark.parametrize("stored", [True, False])
async def test_what_is_deleted_or_not_stored_is_purged_once_its_task_has_ended(
    database: AsyncEngine, caller: Caller, streams_url: str, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.retention._DELIVERED_S", 0.0)
    async with Redis.from_url(streams_url) as redis:
        streams = EventStreams(redis, "hr", 60.0)
        url = "redis://not-used"
        settings = Settings(database_url=url, broker_url=url, streams_url=url, key_pepper="pepper")
        tick = Retention(database, streams, settings=settings)
        kept, _ = await response(database, caller)
        response_id, task_id = await response(database, caller, stored=stored)
        if stored:
            assert await delete_response(database, caller.tenant_id, response_id) == task_id
        assert await delete_response(database, caller.tenant_id, response_id) is None
        assert await find_response(database, caller.tenant_id, response_id) is None
        assert (await tick())["purged"] == 0  # its task runs yet
        await cancel(database, caller.tenant_id, task_id)
        await streams.append([Append(task_id, 1, 2, "task.cancelled", b"{}", result=Result("secret"))])
        assert (await tick())["purged"] == 1
        assert await streams.get_result(task_id) is None
    assert await read_exchange(database, task_id) is None
    task = await look_up(database, caller.tenant_id, task_id)
    assert task is not None
    assert (task.purged, task.metadata) == (True, {})
    assert await find_response(database, caller.tenant_id, kept) is not None


async def test_a_conversation_is_read_oldest_first_without_its_deleted_turns(
    database: AsyncEngine, caller: Caller
) -> None:
    first, _ = await response(database, caller)
    second, _ = await response(database, caller, previous=first)
    third, _ = await response(database, caller, previous=second)
    turns = await list_turns(database, caller.tenant_id, third)
    assert [turn.id for turn in turns] == [first, second, third]
    await delete_response(database, caller.tenant_id, second)
    turns = await list_turns(database, caller.tenant_id, third)
    assert [turn.id for turn in turns] == [first, third]


async def test_another_tenants_response_is_unknown(database: AsyncEngine, caller: Caller) -> None:
    other = await seed_caller(database, "other")
    response_id, _ = await response(database, other)
    assert await find_response(database, caller.tenant_id, response_id) is None
    assert await delete_response(database, caller.tenant_id, response_id) is None
    assert list(await list_turns(database, caller.tenant_id, response_id)) == []
