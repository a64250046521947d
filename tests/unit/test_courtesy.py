"""Who lets whom go first in the engine."""

import asyncio

import pytest

from workers import courtesy
from workers.courtesy import Courtesy


async def waiting(of: Courtesy, step_s: float | None = None) -> "asyncio.Task[None]":
    """Begin to wait."""
    task = asyncio.create_task(of.let_people_go_first(step_s))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_where_nobody_waits_batch_work_goes_at_once() -> None:
    assert (await waiting(Courtesy())).done()


async def test_batch_work_goes_when_the_last_person_has_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courtesy, "MOST_S", 3600.0)
    people = Courtesy()
    people.begin(1)
    people.begin(2)
    batch = await waiting(people)
    people.end(1)
    people.end(1)
    await asyncio.sleep(0)
    assert not batch.done()
    people.end(2)
    async with asyncio.timeout(5):
        await batch


async def test_batch_work_waits_for_two_steps_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courtesy, "MOST_S", 3600.0)
    people = Courtesy()
    people.begin(1)
    async with asyncio.timeout(5):
        await people.let_people_go_first(0.001)


async def test_batch_work_waits_for_a_bounded_time_where_steps_are_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(courtesy, "MOST_S", 0.001)
    people = Courtesy()
    people.begin(1)
    async with asyncio.timeout(5):
        await people.let_people_go_first(3600.0)
