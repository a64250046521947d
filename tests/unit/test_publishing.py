"""The thread that publishes."""

from collections.abc import Iterable

import pytest
from redis import Redis
from sqlalchemy.ext.asyncio import create_async_engine

from core.lanes import Lane, LengthClass, Priority
from runtime.publishing import PublishingThread
from storage.broker import Wakeup, make_celery
from storage.credit import Credit
from storage.outbox import Outgoing
from storage.wakes import News
from tests.support.waiting import eventually

LANE = Lane("m", LengthClass.SHORT, Priority.STANDARD)


async def test_an_error_nobody_thought_of_does_not_end_publishing(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[str] = []

    def publish_many(wakeups: Iterable[Wakeup]) -> int:
        ids = [wakeup.task_id for wakeup in wakeups]
        if "task_1" in ids:
            raise AttributeError("a transport that is taken apart")
        published.extend(ids)
        return len(ids)

    database = create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/none")
    credit = Credit(Redis("127.0.0.1", 1), "hr")
    thread = PublishingThread(make_celery("redis://127.0.0.1:1/0"), database, credit)
    monkeypatch.setattr(thread._publisher, "publish_many", publish_many)
    closed: list[bool] = []
    monkeypatch.setattr(thread._publisher, "close", lambda: closed.append(True))
    thread.start()
    thread.put(Outgoing("task_1", LANE))
    await eventually(lambda: bool(closed), what="a new connection for the next one")
    thread.put(Outgoing("task_2", LANE))
    await eventually(lambda: published == ["task_2"], what="the next one is published")
    thread.tell(News.BATCHES)  # nobody is there to hear it
    thread.put(Outgoing("task_3", LANE))
    await eventually(lambda: published == ["task_2", "task_3"], what="the one after it is published")
    await thread.stop()
    await database.dispose()
