"""What a worker does all its life."""

import asyncio

import pytest
from celery.worker import state as celery_state

from workers.app import duty


@pytest.fixture(autouse=True)
def _running_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celery_state, "should_stop", None)


async def fails() -> None:
    raise ValueError("a row nobody thought of")


async def test_a_worker_ends_when_one_of_its_duties_does() -> None:
    await asyncio.wait([duty(fails())])
    await asyncio.sleep(0)
    assert celery_state.should_stop == 1


async def test_a_duty_that_is_cancelled_at_the_end_is_no_failure() -> None:
    task = duty(fails())
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert celery_state.should_stop is None
