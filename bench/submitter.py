"""Our producer in `bench control`: tasks accepted and published as the API does it, without HTTP before it.

`python -m bench.submitter`, in the environment of the stack's children.
"""

import asyncio
import time
from typing import Any

import orjson

from api.live import LiveEvents
from bench.peer import claim_output, serve
from core.lanes import Lane, LengthClass, Priority
from runtime.publishing import PublishingThread
from runtime.resources import open_celery, open_credit, open_database, open_redis, open_streams
from runtime.settings import settings
from schemas import events
from services.authenticate import authenticate
from services.new_id import new_id
from services.submit import submit
from storage.outbox import Outgoing
from storage.records import Caller, NewTask


class Submitter:
    """What the API process holds, and no HTTP."""

    def __init__(self, caller: Caller) -> None:
        given = settings()
        self.database = open_database(given, name="bench")
        redis = open_redis(given)
        self.publisher = PublishingThread(open_celery(given), self.database, open_credit(given))
        self.live = LiveEvents(redis, open_streams(given, redis), self.database)
        self._caller = caller
        self._lane = Lane(given.model, LengthClass.SHORT, Priority.STANDARD)
        self._request = orjson.dumps(
            {"model": given.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
        ).decode()

    async def start(self) -> None:
        """Open what needs a loop."""
        self.publisher.start()
        await self.live.start()

    async def one(self, task_id: str | None = None) -> None:
        """Accept and publish one task."""
        new = NewTask(
            id=task_id or new_id("task"),
            caller=self._caller,
            lane=self._lane,
            url="/v1/chat/completions",
            request=self._request,
            prompt_tokens=8,
            max_output_tokens=1,
            deadline_s=3600,
            max_attempts=3,
        )
        await submit(self.database, new)
        self.publisher.put(Outgoing(new.id, self._lane))

    async def many(self, count: int) -> None:
        """Accept tasks, 16 at a time."""
        left = count

        async def place() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self.one()

        await asyncio.gather(*(place() for _ in range(16)))

    async def timed(self) -> float:
        """Seconds from the submit to the result of one task."""
        began, task_id = time.perf_counter(), new_id("task")
        async with self.live.subscription(task_id) as subscription:
            await self.one(task_id)
            async for event in subscription.events(1, 30):
                if event is not None and event.type in events.FINAL_STATES:
                    break
        return time.perf_counter() - began

    async def at_rate(self, rate: float, seconds: float) -> list[float]:
        """Open loop: tasks at even moments, whatever became of the earlier ones; each from its moment."""
        loop = asyncio.get_running_loop()
        began, late = loop.time() + 0.1, list[float]()

        async def at(moment: float) -> float:
            await asyncio.sleep(moment - loop.time())
            late.append(loop.time() - moment)
            return await self.timed() + late[-1]

        return list(await asyncio.gather(*(at(began + n / rate) for n in range(int(rate * seconds)))))


async def main() -> None:
    """Answer commands."""
    answers = claim_output()
    submitter: Submitter | None = None

    async def handle(command: dict[str, Any]) -> Any:
        nonlocal submitter
        if submitter is None:
            given = settings()
            database = open_database(given, name="bench")
            access = await authenticate(
                database, command["key"], given.key_pepper.get_secret_value().encode()
            )
            await database.dispose()
            if access is None:
                raise ValueError("the key is not in force")
            submitter = Submitter(access.caller)
            await submitter.start()
        if command["do"] == "many":
            await submitter.many(command["count"])
            return None
        return await submitter.at_rate(command["rate"], command["seconds"])

    await serve(answers, handle)


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
