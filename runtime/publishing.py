"""Publishing beside the event loop: accepted tasks go to a thread that owns the broker connection.

What can't be published is left to the control process, which finds it in the outbox: losing what waits here
(a crash, a broker that is away) loses no task.
"""

import asyncio
import queue
import threading
from concurrent.futures import Future

import structlog
from celery import Celery
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from services.publish import note_published
from storage.broker import BrokerUnavailableError, Publisher, Wakeup
from storage.credit import Credit
from storage.outbox import Outgoing
from storage.wakes import News

_BATCH = 500
log = structlog.get_logger()


def wakeup_of(outgoing: Outgoing) -> Wakeup:
    """The message that the broker gets."""
    headers = None if outgoing.traceparent is None else {"traceparent": outgoing.traceparent}
    return Wakeup(outgoing.lane.queue, outgoing.task_id, headers)


class PublishingThread:
    """Publishes in the order of `put`; marks what the broker took.

    What the replicas can't start soon is not published here but left to the control process's dispatcher, which
    is told: it chooses by policy, and a message in a queue can't be overtaken any more. `credit` None: publish all.
    """

    def __init__(self, app: Celery, database: AsyncEngine, credit: Credit | None = None) -> None:
        self._publisher = Publisher(app)
        self._credit = credit
        self._database = database
        self._queue: queue.SimpleQueue[Outgoing | News | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._marks: set[Future[None]] = set()

    def start(self) -> None:
        """Start the thread; marks are written on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def put(self, outgoing: Outgoing) -> None:
        """Publish soon. Call it after the commit, never before."""
        self._queue.put(outgoing)

    def tell(self, news: News) -> None:
        """Tell the control process soon that there is something to do. Call it after the commit."""
        self._queue.put(news)

    async def stop(self) -> None:
        """Publish what waits and end."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, 10)
        for mark in list(self._marks):
            await asyncio.wrap_future(mark)
        self._publisher.close()
        if self._credit is not None:
            self._credit.close()

    def _take(self) -> list[Outgoing | News | None]:
        taken = [self._queue.get()]
        while len(taken) < _BATCH and taken[-1] is not None:
            try:
                taken.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return taken

    def _work(self) -> None:
        last = False
        while not last:
            taken = self._take()
            last = taken[-1] is None
            self._tell({item for item in taken if isinstance(item, News)})
            batch = self._startable([item for item in taken if isinstance(item, Outgoing)])
            try:
                self._publisher.publish_many([wakeup_of(item) for item in batch])
            except BrokerUnavailableError as error:
                log.warning("publish_failed", tasks=len(batch), error=str(error))
                continue
            except Exception:
                log.exception(
                    "publish_failed", tasks=len(batch)
                )  # what ended the thread would delay every task
                self._publisher.close()
                continue
            if batch:
                self._mark(batch)

    def _startable(self, batch: list[Outgoing]) -> list[Outgoing]:
        if self._credit is None or not batch:
            return batch
        try:
            batch, held_back = self._credit.split(batch)
            if held_back:
                self._credit.tell(News.TASKS)
        except RedisError as error:  # the broker is away: publishing says so too
            log.warning("credit_unknown", tasks=len(batch), error=str(error))
        except Exception:  # as below: the thread goes on
            log.exception("credit_unknown", tasks=len(batch))
        return batch

    def _tell(self, all_news: set[News]) -> None:
        if self._credit is None:
            return
        try:
            for news in all_news:
                self._credit.tell(news)
        except Exception as error:  # noqa: BLE001 - the control process finds out by itself, and the thread goes on
            log.warning("not_told", news=sorted(all_news), error=f"{type(error).__name__}: {error}")

    def _mark(self, sent: list[Outgoing]) -> None:
        assert self._loop is not None
        mark = asyncio.run_coroutine_threadsafe(self._note(sent), self._loop)
        self._marks.add(mark)
        mark.add_done_callback(self._marks.discard)

    async def _note(self, sent: list[Outgoing]) -> None:
        try:
            await note_published(self._database, sent)
        except Exception as error:  # noqa: BLE001 - the outbox publishes them once more, and claims are fenced
            log.warning("mark_published_failed", tasks=len(sent), error=str(error))
