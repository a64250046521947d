"""/v1/tasks: submit, poll, list, cancel."""

import asyncio
import re
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from redis.exceptions import RedisError

from api.accept import accept
from api.auth import Caller
from api.body import read_json, takes
from api.ending import cancel_task
from api.idempotency import idempotency_of
from api.json import JsonResponse
from api.queries import PageSize
from api.sse import unless_gone
from api.state import ApiState, state_of
from api.task_object import poll_after_s, task_object
from api.waiting import waiting_object
from api.webhooks import check_webhook
from core.failures import Failure, is_dead
from core.ids import looks_like_id
from core.lanes import Priority
from core.states import FINAL, TaskState
from runtime.prepare import Terms
from schemas.errors import RequestError
from schemas.events import FINAL_STATES
from schemas.requests import REQUESTS, validate
from schemas.tasks import TaskCreate
from services.look_up import list_page, look_up, read_response
from services.once import Earlier
from services.retry import retry
from storage.records import Task

router = APIRouter(tags=["tasks"])
_MAX_WAIT_S = 60.0


def not_found(task_id: str) -> RequestError:
    """404, the same for an unknown id and for another tenant's."""
    return RequestError(404, f"No task {task_id!r}.", "task_not_found")


async def find_task(state: ApiState, access: Caller, task_id: str) -> Task:
    """Read one of the caller's tasks. Raises: RequestError 404, 410."""
    task = None
    if looks_like_id("task", task_id):
        task = await look_up(state.database, access.caller.tenant_id, task_id)
    if task is None:
        raise not_found(task_id)
    if task.purged:
        raise RequestError(410, f"The task {task_id!r} is past its retention.", "task_purged")
    return task


async def render(state: ApiState, task: Task) -> dict[str, Any]:
    """Build a task's wire form with its response, read where it is found soonest."""
    response = None
    if task.state in FINAL:
        try:
            response = await state.streams.get_result(task.id)
        except RedisError:
            response = None
        if response is None:
            response = await read_response(state.database, task.id)
        state.note_delivered(task)
    return task_object(task, response)


@router.post(
    "/v1/tasks",
    status_code=202,
    openapi_extra=takes(TaskCreate),
)
async def create(request: Request, access: Caller) -> Response:
    """Accept one OpenAI request to be run later."""
    state = state_of(request)
    raw, parsed = await read_json(request, state.settings.max_body_bytes)
    asked = validate(TaskCreate, parsed)
    body = validate(REQUESTS[asked.url], asked.body, "body")
    if body.stream:
        raise RequestError(
            400,
            "A task is streamed by its events URL; leave body.stream out.",
            "invalid_value",
            "body.stream",
        )
    await check_webhook(state, access.caller.tenant_id, asked.webhook)
    wait_s = _wait_s(request.headers.get("prefer", ""))
    accepted = await accept(
        state,
        access,
        body,
        Terms(
            url=asked.url,
            priority=asked.priority or Priority.STANDARD,
            deadline_s=asked.deadline_s or state.settings.task_ttl_s,
            max_attempts=state.settings.max_attempts,
            metadata=asked.metadata or {},
            webhook=asked.webhook,
            store=asked.store is not False,
        ),
        idempotency=idempotency_of(request, raw),
        answer=lambda task: Earlier(task.id, 202, orjson.dumps(task_object(task)).decode()),
        within="body.",
    )
    task_id = accepted.id if isinstance(accepted, Task) else accepted.object_id
    headers = {"Location": f"/v1/tasks/{task_id}"}
    if wait_s > 0:
        headers["Preference-Applied"] = f"wait={wait_s:g}"
        task = await unless_gone(request, _ended(state, access, task_id, wait_s))
        if task.state in FINAL:
            return JsonResponse(await render(state, task), 200, headers)
    elif isinstance(accepted, Task):
        task = accepted
    elif accepted.answer is not None:  # told before: told again
        return Response(accepted.answer, accepted.status, headers | {"Retry-After": "1"}, "application/json")
    else:
        task = await find_task(state, access, task_id)
    headers["Retry-After"] = str(poll_after_s(task))
    return JsonResponse(task_object(task), 202, headers)


def _wait_s(prefer: str) -> float:
    """Read `Prefer: wait=N` (RFC 7240). Raises: RequestError 400 when N is no count of seconds."""
    for preference in re.split("[,;]", prefer):
        name, _, value = preference.partition("=")
        if name.strip().lower() == "wait":
            seconds = value.strip().strip('"')
            if not re.fullmatch("[0-9]{1,6}", seconds):
                raise RequestError(400, "Prefer: wait takes whole seconds.", "invalid_value", "Prefer")
            return min(float(seconds), _MAX_WAIT_S)
    return 0.0


async def _ended(state: ApiState, access: Caller, task_id: str, wait_s: float) -> Task:
    """Wait for a task's end, but not longer than that, and read it."""
    try:
        async with asyncio.timeout(wait_s), state.live.subscription(task_id) as subscription:
            task = await find_task(state, access, task_id)  # after subscribing: its end can't be missed now
            if task.state in FINAL:
                return task
            async for event in subscription.events(1, wait_s):
                if event is not None and event.type in FINAL_STATES:
                    break
    except (RedisError, TimeoutError):
        pass  # the caller asked for a favour: the task is accepted all the same
    return await find_task(state, access, task_id)


@router.get("/v1/tasks")
async def list_(
    request: Request,
    access: Caller,
    limit: PageSize = 20,
    after: str | None = None,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    status: Annotated[list[TaskState] | None, Query()] = None,
    dead: bool = False,
) -> Response:
    """List the tenant's tasks, newest first unless asked otherwise; `dead`: those out of attempts."""
    state = state_of(request)
    if after is not None and not looks_like_id("task", after):
        raise not_found(after)
    page = await list_page(
        state.database,
        access.caller.tenant_id,
        limit=limit,
        newest_first=order == "desc",
        after=after,
        states=status or (),
        failures=[failure for failure in Failure if is_dead(failure)] if dead else (),
    )
    if page is None:
        raise not_found(str(after))
    found, has_more = page
    data = [task_object(task) for task in found]
    return JsonResponse(
        {
            "object": "list",
            "data": data,
            "first_id": found[0].id if found else None,
            "last_id": found[-1].id if found else None,
            "has_more": has_more,
        }
    )


@router.get("/v1/tasks/{task_id}")
async def get(request: Request, access: Caller, task_id: str) -> Response:
    """Poll a task: 200 whatever became of it."""
    state = state_of(request)
    task = await find_task(state, access, task_id)
    headers = {} if task.state in FINAL else {"Retry-After": str(poll_after_s(task))}
    shown = await render(state, task)
    if task.state is TaskState.QUEUED:
        shown["queue"] = await waiting_object(state, task)
    return JsonResponse(shown, 200, headers)


@router.post("/v1/tasks/{task_id}/retry")
async def retry_(request: Request, access: Caller, task_id: str) -> Response:
    """Do a failed task again, as a new task: 202 with that one."""
    state = state_of(request)
    failed = await find_task(state, access, task_id)
    again = await retry(state.database, failed.id, access.caller.tenant_id)
    if again is None:
        raise RequestError(409, f"The task is {failed.state}, not failed.", "task_not_failed")
    state.publisher.put(again)
    task = await find_task(state, access, again.task_id)
    return JsonResponse(task_object(task), 202, {"Location": f"/v1/tasks/{task.id}"})


@router.post("/v1/tasks/{task_id}/cancel")
async def cancel(request: Request, access: Caller, task_id: str) -> Response:
    """Cancel a task: 202 while it is stopping, 200 when it is final."""
    state = state_of(request)
    await find_task(state, access, task_id)
    await cancel_task(state, access.caller.tenant_id, task_id)
    task = await find_task(state, access, task_id)
    return JsonResponse(await render(state, task), 200 if task.state in FINAL else 202)
