"""Many callers, one statement: calls made while a batch runs become the next batch.

Without load a call runs at once and alone; under load the batch grows with the time a round trip takes, so
the number of round trips stops growing with the number of callers.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Grouper(Generic[Item, Result]):
    """Calls of one kind, run in batches. `run` returns one result for each item, in order."""

    def __init__(
        self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]], *, max_size: int = 256
    ) -> None:
        self._run = run
        self._max_size = max_size
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._drain: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        """Run one item in the next batch. Raises: whatever `run` raises for it."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._drain_all())
        return await future

    async def _drain_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_size))]
            # a caller that was cancelled before its batch began wants nothing any more
            batch = [(item, future) for item, future in batch if not future.cancelled()]
            if batch:
                await self._run_batch(batch)

    async def _run_batch(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._run([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - handed to the callers
            if len(batch) > 1:  # one bad item must not fail the others
                for one in batch:
                    await self._run_batch([one])
                return
            if not batch[0][1].cancelled():
                batch[0][1].set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.cancelled():
                future.set_result(result)
