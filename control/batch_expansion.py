"""Lines of running batches become tasks, a window at a time: a batch never has more than so many that are open."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
from sqlalchemy.ext.asyncio import AsyncEngine

from control.each import for_each
from core.batch_order import order_by_prefix
from core.batches import BatchState
from core.lanes import Priority
from core.lines import Line
from core.prefix import prefix_key
from runtime.prepare import Terms, prepare
from runtime.tokenizers import Tokenizers
from schemas.batches import RequestLine, read_line, refused, request_id
from schemas.errors import RequestError
from schemas.requests import REQUESTS, validate
from services.authenticate import Access, access_of
from services.batch_input import read_window
from services.expand_batch import WindowTooLargeError, expand_batch
from services.hold import BudgetExhaustedError
from services.read_batches import open_batches
from services.register import new_id
from storage.batch_items import NewItem
from storage.batches import Batch
from storage.blobs import Blobs
from storage.records import NewTask


@dataclass(frozen=True, slots=True)
class Limits:
    """How lines become tasks."""

    live_tasks: int  # of one batch: it gets further ones once half of these are done
    max_line_bytes: int
    max_attempts: int


class BatchExpansion:
    """The expansion's tick."""

    def __init__(self, database: AsyncEngine, blobs: Blobs, limits: Limits, wake: Callable[[], None]) -> None:
        """`wake` tells the dispatcher that something waits."""
        self._database, self._blobs, self._limits, self._wake = database, blobs, limits, wake
        self._tokenizers = Tokenizers()

    async def __call__(self) -> Mapping[str, int]:
        """Give each running batch its next window, where there is room for one.

        Windows are never small, so that there is something to order in them.
        """
        room = [
            batch
            for batch in await open_batches(self._database)
            if batch.state is BatchState.IN_PROGRESS
            and not batch.expanded
            and not batch.late
            and batch.unwritten <= self._limits.live_tasks // 2
        ]
        return {"expanded": await for_each(room, self._expand)}

    async def _expand(self, batch: Batch) -> int:
        """Make tasks of the next lines, as far as the owner's budgets reach.

        Where those are spent, the lines fail. Where open tasks hold what is left of them, the lines wait: what is
        held is the most that those can cost, and most leave something.
        """
        most = self._limits.live_tasks - batch.unwritten
        while True:
            try:
                return await self._expand_window(batch, most)
            except WindowTooLargeError as error:
                most = error.fitting
            except BudgetExhaustedError as error:
                return await self._fail_window(batch, most, error) if error.standing.spent_up else 0

    async def _fail_window(self, batch: Batch, most: int, error: BudgetExhaustedError) -> int:
        lines, to_bytes, to_line = await read_window(
            batch, self._blobs, most=most, max_line_bytes=self._limits.max_line_bytes
        )
        refusal = RequestError(429, f"The budget is exhausted: {error}.", "budget_exhausted")
        items = [
            NewItem(
                line.number,
                read_line(line.text, batch.endpoint).custom_id,
                refusal=_refusal(batch, line, refusal),
            )
            for line in lines
        ]
        await expand_batch(self._database, batch, to_bytes=to_bytes, to_line=to_line, items=items, new=())
        return len(lines)

    async def _expand_window(self, batch: Batch, most: int) -> int:
        began = time.monotonic()
        lines, to_bytes, to_line = await read_window(
            batch,
            self._blobs,
            most=most,
            max_line_bytes=self._limits.max_line_bytes,
        )
        access = await access_of(self._database, batch.caller)
        items: list[NewItem] = []
        new: list[NewTask] = []
        prompts: list[bytes] = []
        for line in lines:
            await asyncio.sleep(0)  # a window's prompts take a second to count: leases are renewed meanwhile
            request = read_line(line.text, batch.endpoint)
            try:
                task = await self._prepare(batch, access, request)
            except RequestError as error:
                if error.status >= 500:
                    raise  # not the line's fault: the next tick tries again
                items.append(NewItem(line.number, request.custom_id, refusal=_refusal(batch, line, error)))
                continue
            items.append(NewItem(line.number, request.custom_id, task.id))
            new.append(task)
            prompts.append(_prompt(request))
        left_s = max(0.0, batch.left_s - (time.monotonic() - began))
        order = range(len(new)) if batch.in_file_order else order_by_prefix(prompts)
        new, items = _ordered(new, items, order)
        await expand_batch(
            self._database,
            batch,
            to_bytes=to_bytes,
            to_line=to_line,
            items=items,
            new=[replace(task, deadline_s=left_s) for task in new],
        )
        self._wake()
        return len(lines)

    async def _prepare(self, batch: Batch, access: Access, request: RequestLine) -> NewTask:
        body = validate(REQUESTS[batch.endpoint], request.body)
        if body.stream:
            raise RequestError(400, "A batch's request is not streamed.", "invalid_value", "stream")
        terms = Terms(
            url=batch.endpoint,
            priority=Priority.BATCH,
            deadline_s=batch.left_s,
            max_attempts=self._limits.max_attempts,
            metadata={"batch_id": batch.id, "custom_id": request.custom_id},
        )
        task = await prepare(self._tokenizers, access, body, terms)
        return task if batch.in_file_order else replace(task, prefix_key=prefix_key(request.body))


def _refusal(batch: Batch, line: Line, error: RequestError) -> str:
    return refused(
        error.status, request_id(batch.id, line.number), error.message, error.code, error.param
    ).decode()


def _prompt(request: RequestLine) -> bytes:
    """What a request's prompt begins with, as bytes."""
    body = request.body
    return orjson.dumps(body.get("messages") or body.get("prompt") or body.get("input"))


def _ordered(
    new: list[NewTask], items: list[NewItem], order: Sequence[int]
) -> tuple[list[NewTask], list[NewItem]]:
    """Give tasks ids that rise in the order in which they should run: queues and outbox go by ids."""
    ids = sorted(new_id("task") for _ in new)
    renamed = {new[place].id: id_ for place, id_ in zip(order, ids, strict=True)}
    tasks = sorted((replace(task, id=renamed[task.id]) for task in new), key=lambda task: task.id)
    return tasks, [replace(item, task_id=renamed[item.task_id]) if item.task_id else item for item in items]
