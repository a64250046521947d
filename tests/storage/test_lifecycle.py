"""A task's row through its life, on a real Postgres."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from core.failures import Failure
from core.pricing import Usage, cost_usd_micros
from core.states import TaskState
from services.attempt import Holder, claim, end_forbidden, hand_back, renew, set_exposed, settle
from services.cancel import cancel
from services.dispatch import look, look_around, read_heads
from services.look_up import look_up, read_response
from services.once import Earlier, IdempotencyKey, KeyInFlightError, KeyReusedError, find_earlier
from services.publish import note_published
from services.submit import submit
from services.tend import expire, forget_keys, purge, rescue
from storage.money_tables import ledger_entries
from storage.outbox import Outgoing
from storage.records import Caller, Claim, Ending, Held, NewTask, Task
from storage.retention import Periods
from storage.tables import attempts, grants
from tests.support.seeds import MODEL, TARIFF, end_lease, new_task, seed_caller, seed_task

HOLDER = Holder(worker="w1", model=MODEL, lease_s=30.0)
USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=7)


async def read(database: AsyncEngine, new: NewTask) -> Task:
    task = await look_up(database, new.caller.tenant_id, new.id)
    assert task is not None
    return task


async def claimed(database: AsyncEngine, new: NewTask) -> Claim:
    return (await claim(database, [new.id], HOLDER))[new.id]


def completed(held: Claim) -> Ending:
    return Ending(
        task_id=held.task_id,
        attempt=held.attempt,
        state=TaskState.COMPLETED,
        usage=USAGE,
        cost_usd_micros=cost_usd_micros(USAGE, held.tariff),
        finish_reason="stop",
        response='{"text":"a\\u0000b"}',
    )


async def unpublished(database: AsyncEngine) -> list[str]:
    groups = (await look(database, await look_around(database), older_s=-1.0)).groups
    return [one.id for one in await read_heads(database, groups, 100, older_s=-1.0)] if groups else []


async def give_back(database: AsyncEngine, held: Claim, failure: Failure, exposed: bool = True) -> bool:
    return await hand_back(database, held.task_id, held.attempt, failure, exposed=exposed)


async def nothing_streamed(task_id: str) -> int:
    return 0


async def test_a_task_is_claimed_once_however_often_its_message_comes(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    assert (await claimed(database, new)).attempt == 1
    assert await claim(database, [new.id, new.id], HOLDER) == {}


async def test_a_claim_carries_what_the_attempt_needs(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller, request='{"messages":["é"]}')
    held = await claimed(database, new)
    assert (held.request, held.lane) == ('{"messages":["é"]}', new.lane)
    assert replace(held.tariff, id=None) == TARIFF
    assert 3590 < held.remaining_s <= 3600


async def test_settling_writes_state_response_history_and_ledger_at_once(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    held = await claimed(database, new)
    assert await settle(database, [completed(held)]) == {new.id: TaskState.COMPLETED}
    task = await read(database, new)
    assert (task.state, task.usage, task.finish_reason) == (TaskState.COMPLETED, USAGE, "stop")
    assert task.cost_usd_micros == cost_usd_micros(USAGE, TARIFF) == 2
    assert await read_response(database, new.id) == '{"text":"a\\u0000b"}'
    async with database.connect() as connection:
        history = (await connection.execute(sa.select(attempts))).one()
    assert (history.outcome, history.output_tokens, history.worker) == ("completed", 7, "w1")


async def test_a_stale_attempt_can_change_nothing(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller)
    stale = await claimed(database, new)
    await end_lease(database, new.id)
    assert (await rescue(database, limit=10, count_streamed=nothing_streamed)).requeued == [new.id]
    fresh = await claimed(database, new)
    assert fresh.attempt == 2
    assert await settle(database, [completed(stale)]) == {}
    assert await renew(database, [Held(new.id, stale.attempt)], 30.0) == {}
    assert not await give_back(database, stale, Failure.INTERNAL)
    assert await settle(database, [completed(fresh)]) == {new.id: TaskState.COMPLETED}


async def test_a_settled_task_is_settled_once(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller)
    held = await claimed(database, new)
    await settle(database, [completed(held)])
    assert await settle(database, [completed(held)]) == {}
    async with database.connect() as connection:
        entries = (await connection.execute(sa.select(ledger_entries.c.task_id))).scalars().all()
    assert entries == [new.id]


async def test_many_tasks_settle_in_one_statement_and_only_the_stale_one_is_left_out(
    database: AsyncEngine, caller: Caller
) -> None:
    new = [await seed_task(database, caller) for _ in range(5)]
    held = await claim(database, [task.id for task in new], HOLDER)
    await settle(database, [completed(held[new[2].id])])
    ended = await settle(database, [completed(one) for one in held.values()])
    assert set(ended) == {task.id for task in new} - {new[2].id}


async def test_a_live_lease_is_not_rescued(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller)
    await claimed(database, new)
    assert (await rescue(database, limit=10, count_streamed=nothing_streamed)).requeued == []


async def test_a_task_that_loses_its_worker_too_often_fails_for_good_and_costs_nothing(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller, max_attempts=2)
    for attempt in (1, 2):
        await claimed(database, new)
        await set_exposed(database, new.id, attempt, True)
        await end_lease(database, new.id)
        rescued = await rescue(database, limit=10, count_streamed=nothing_streamed)
    assert rescued.ended == [(new.id, TaskState.FAILED, Failure.WORKER_LOST)]
    task = await read(database, new)
    assert (task.failure, task.attempt, task.cost_usd_micros) == (Failure.WORKER_LOST, 2, 0)


async def test_a_task_lost_past_its_deadline_ends_for_that_in_its_row_and_for_whoever_announces_it(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    await claimed(database, new)
    await end_lease(database, new.id)
    async with database.begin() as connection:
        await connection.execute(sa.text("UPDATE tasks SET deadline_at = now()"))
    rescued = await rescue(database, limit=10, count_streamed=nothing_streamed)
    assert rescued.ended == [(new.id, TaskState.INCOMPLETE, Failure.DEADLINE)]
    assert (await read(database, new)).failure is Failure.DEADLINE


async def test_a_refusal_that_quotes_a_nul_character_is_stored(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller)
    await claimed(database, new)
    refused = Ending(
        new.id,
        1,
        TaskState.FAILED,
        USAGE,
        failure=Failure.REQUEST_REJECTED,
        failure_message="can't take 'a\0b'",
    )
    assert await settle(database, [refused]) == {new.id: TaskState.FAILED}
    assert (await read(database, new)).failure_message == "can't take 'a\ufffdb'"


async def test_a_drain_does_not_count_as_a_failed_attempt(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller, max_attempts=1)
    for attempt in (1, 2, 3):
        held = await claimed(database, new)
        assert held.attempt == attempt
        assert await give_back(database, held, Failure.WORKER_DRAINED)


async def test_the_outbox_has_a_task_that_was_handed_back_whatever_became_of_its_message(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    await note_published(database, [Outgoing(new.id, new.lane)])
    assert await give_back(database, await claimed(database, new), Failure.WORKER_DRAINED)
    assert await unpublished(database) == [new.id]


async def test_the_last_attempt_is_not_handed_back(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller, max_attempts=1)
    held = await claimed(database, new)
    assert not await give_back(database, held, Failure.ENGINE_DEAD)
    assert (await read(database, new)).state is TaskState.IN_PROGRESS


async def test_a_bystander_of_an_engines_death_is_not_blamed_but_its_luck_ends_somewhere(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller, max_attempts=1)
    for _ in range(10):
        held = await claimed(database, new)
        assert held.failures == 0
        assert await give_back(database, held, Failure.ENGINE_DEAD, exposed=False)
    assert not await give_back(database, await claimed(database, new), Failure.ENGINE_DEAD, exposed=False)


async def test_only_a_task_that_had_produced_nothing_is_blamed_for_its_workers_death(
    database: AsyncEngine, caller: Caller
) -> None:
    productive, silent = await seed_task(database, caller), await seed_task(database, caller)
    await claim(database, [productive.id, silent.id], HOLDER)
    await renew(database, [Held(productive.id, 1, cleared=True), Held(silent.id, 1)], 30.0)
    for task in (productive, silent):
        await end_lease(database, task.id)
    await rescue(database, limit=10, count_streamed=nothing_streamed)
    again = await claim(database, [productive.id, silent.id], HOLDER)
    assert (again[productive.id].failures, again[silent.id].failures) == (0, 1)


async def test_a_suspect_is_blamed_only_once_it_went_to_the_engine(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    assert await give_back(database, await claimed(database, new), Failure.ENGINE_DEAD)
    suspect = await claimed(database, new)
    assert suspect.failures == 1
    await end_lease(database, new.id)
    await rescue(database, limit=10, count_streamed=nothing_streamed)
    suspect = await claimed(database, new)
    assert suspect.failures == 1, "its worker died before the suspect's turn came"
    assert await set_exposed(database, new.id, suspect.attempt, True)
    await end_lease(database, new.id)
    await rescue(database, limit=10, count_streamed=nothing_streamed)
    assert (await claimed(database, new)).failures == 2


async def test_a_queued_task_is_cancelled_for_good(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller)
    assert await cancel(database, caller.tenant_id, new.id) is TaskState.CANCELLED
    assert await claim(database, [new.id], HOLDER) == {}
    assert await cancel(database, caller.tenant_id, new.id) is None
    assert (await read(database, new)).cost_usd_micros == 0


async def test_a_running_task_that_is_cancelled_ends_as_cancelled_and_pays_for_what_it_made(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    held = await claimed(database, new)
    assert await cancel(database, caller.tenant_id, new.id) is TaskState.CANCELLING
    assert await renew(database, [Held(new.id, 1)], 30.0) == {new.id: TaskState.CANCELLING}
    failed = Ending(
        new.id, 1, TaskState.FAILED, USAGE, cost_usd_micros(USAGE, held.tariff), failure=Failure.ENGINE_DEAD
    )
    assert await settle(database, [failed]) == {new.id: TaskState.CANCELLED}
    task = await read(database, new)
    assert (task.failure, task.cost_usd_micros) == (None, 2)


async def test_a_task_whose_worker_died_while_it_was_cancelled_is_cancelled_not_run_again(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    await claimed(database, new)
    await cancel(database, caller.tenant_id, new.id)
    await end_lease(database, new.id)

    async def seven_streamed(task_id: str) -> int:
        return 7

    rescued = await rescue(database, limit=10, count_streamed=seven_streamed)
    assert (rescued.requeued, rescued.ended) == ([], [(new.id, TaskState.CANCELLED, None)])
    task = await read(database, new)
    streamed = Usage(prompt_tokens=10, cached_tokens=0, output_tokens=7)
    assert (task.usage, task.cost_usd_micros) == (streamed, cost_usd_micros(streamed, TARIFF))
    assert task.cost_usd_micros == 2


async def test_a_queued_task_past_its_deadline_expires_and_is_not_claimed(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller, deadline_s=-1.0)
    assert await claim(database, [new.id], HOLDER) == {}
    assert await expire(database, limit=10) == [new.id]
    assert (await read(database, new)).failure is Failure.DEADLINE


async def test_a_grant_withdrawn_while_the_task_waited_fails_it_as_forbidden(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    async with database.begin() as connection:
        await connection.execute(sa.delete(grants))
    assert await claim(database, [new.id], HOLDER) == {}
    assert await end_forbidden(database, [new.id]) == [new.id]
    assert (await read(database, new)).failure is Failure.FORBIDDEN


async def test_another_tenants_task_does_not_exist(database: AsyncEngine, caller: Caller) -> None:
    new = await seed_task(database, caller)
    other = await seed_caller(database, "other")
    assert await look_up(database, other.tenant_id, new.id) is None
    assert await cancel(database, other.tenant_id, new.id) is None


async def test_an_accepted_task_stays_in_the_outbox_until_the_broker_has_it(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    assert await unpublished(database) == [new.id]
    await note_published(database, [Outgoing(new.id, new.lane)])
    assert await unpublished(database) == []


async def test_the_same_idempotency_key_and_body_is_one_task(database: AsyncEngine, caller: Caller) -> None:
    first, second = new_task(caller), new_task(caller)
    key = IdempotencyKey("k", b"digest")
    accepted = await submit(database, first, key)
    assert accepted == await read(database, first)
    assert await submit(database, second, key) == Earlier(first.id, 202, None)
    assert await look_up(database, caller.tenant_id, second.id) is None
    with pytest.raises(KeyReusedError):
        await submit(database, second, IdempotencyKey("k", b"other digest"))


async def test_a_key_held_by_another_request_is_in_flight(database: AsyncEngine, caller: Caller) -> None:
    key = IdempotencyKey("k", b"digest")
    async with database.begin() as connection:
        assert await find_earlier(connection, caller.tenant_id, key) is None
        with pytest.raises(KeyInFlightError):
            await submit(database, new_task(caller), key)
    assert isinstance(await submit(database, new_task(caller), key), Task)


async def test_a_body_sent_again_is_the_same_task_only_when_the_client_says_that_it_tries_again(
    database: AsyncEngine, caller: Caller
) -> None:
    first, second, third = new_task(caller), new_task(caller), new_task(caller)
    await submit(database, first, IdempotencyKey("body", b"digest", again=False))
    assert await submit(database, third, IdempotencyKey("body", b"digest", again=True)) == Earlier(
        first.id, 202, None
    )
    await submit(database, second, IdempotencyKey("body", b"digest", again=False))
    assert await submit(database, third, IdempotencyKey("body", b"digest", again=True)) == Earlier(
        second.id, 202, None
    )


async def test_keys_past_their_time_are_forgotten(database: AsyncEngine, caller: Caller) -> None:
    key = IdempotencyKey("k", b"digest")
    await submit(database, new_task(caller), key)
    assert await forget_keys(database, older_s=3600.0, limit=10) == 0
    assert await forget_keys(database, older_s=0.0, limit=10) == 1
    assert isinstance(await submit(database, new_task(caller), key), Task)


async def test_purging_deletes_bodies_and_keeps_the_row_and_its_cost(
    database: AsyncEngine, caller: Caller
) -> None:
    new = await seed_task(database, caller)
    await settle(database, [completed(await claimed(database, new))])
    assert await purge(database, Periods(3600.0, 0.0, 0.0), hash_key=b"", limit=10) == []
    assert await purge(database, Periods(0.0, 0.0, 0.0), hash_key=b"", limit=10) == [new.id]
    task = await read(database, new)
    assert (task.purged, task.cost_usd_micros) == (True, 2)
    assert await read_response(database, new.id) is None


@pytest.mark.parametrize(
    "change",
    [
        "state = 'nonsense'",
        "state = 'completed'",
        "state = 'in_progress'",
        "failure = 'bad luck'",
        "failures = 5",
        "finished_at = now()",
        "priority = 'urgent'",
    ],
)
async def test_the_schema_refuses_rows_that_the_rules_do_not_allow(
    database: AsyncEngine, caller: Caller, change: str
) -> None:
    await seed_task(database, caller)
    with pytest.raises(IntegrityError):
        async with database.begin() as connection:
            await connection.execute(sa.text(f"UPDATE tasks SET {change}"))
