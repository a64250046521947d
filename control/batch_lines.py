"""A window of a batch's lines, made ready: each a task to be, or why it never becomes one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.lanes import Priority
from core.lines import Line
from runtime.prepare import Terms, prepare
from runtime.tokenizers import Tokenizers
from schemas.batches import RequestLine, read_line, refused, request_id
from schemas.errors import RequestError
from schemas.requests import REQUESTS, validate
from services.authenticate import Access
from services.new_id import new_id
from storage.batch_items import NewItem
from storage.batches import Batch
from storage.records import NewTask


@dataclass(frozen=True, slots=True)
class Ready:
    """One line."""

    line: Line
    custom_id: str
    task: NewTask | None  # None: refused
    refusal: str | None = None  # JSON


async def make_ready(
    batch: Batch, line: Line, access: Access, tokenizers: Tokenizers, max_attempts: int
) -> Ready:
    """Do with a line what its route would do. Raises: RequestError of what is not the line's fault."""
    request = read_line(line.text, batch.endpoint)
    try:
        task = await _prepare(batch, request, access, tokenizers, max_attempts)
    except RequestError as error:
        if error.status >= 500:
            raise
        return refuse(batch, line, request.custom_id, error)
    return Ready(line, request.custom_id, task)


def refuse(batch: Batch, line: Line, custom_id: str, error: RequestError) -> Ready:
    """Have a line end as an error, with what a caller of its route would be told."""
    about = (error.message, error.code, error.param)
    told = refused(error.status, request_id(batch.id, line.number), *about)
    return Ready(line, custom_id, None, told.decode())


async def _prepare(
    batch: Batch, request: RequestLine, access: Access, tokenizers: Tokenizers, max_attempts: int
) -> NewTask:
    body = validate(REQUESTS[batch.endpoint], request.body)
    if body.stream:
        raise RequestError(400, "A batch's request is not streamed.", "invalid_value", "stream")
    terms = Terms(
        url=batch.endpoint,
        priority=Priority.BATCH,
        deadline_s=batch.left_s,
        max_attempts=max_attempts,
        metadata={"batch_id": batch.id, "custom_id": request.custom_id},
    )
    task = await prepare(tokenizers, access, body, terms)
    return replace(task, prefix_key=None, in_order=True) if batch.in_file_order else task


def items_and_tasks(ready: Sequence[Ready]) -> tuple[list[NewItem], list[NewTask]]:
    """Return the window's rows. Ids of tasks rise as the lines stand: of equal ranks the lower id goes first."""
    ids = iter(sorted(new_id("task") for one in ready if one.task is not None))
    items, tasks = list[NewItem](), list[NewTask]()
    for one in ready:
        task = None if one.task is None else replace(one.task, id=next(ids))
        items.append(NewItem(one.line.number, one.custom_id, None if task is None else task.id, one.refusal))
        if task is not None:
            tasks.append(task)
    return items, tasks


def first_tasks(ready: Sequence[Ready], count: int) -> list[Ready]:
    """Return the lines up to the one whose task would be one too many."""
    kept: list[Ready] = []
    for one in ready:
        count -= one.task is not None
        if count < 0:
            break
        kept.append(one)
    return kept
