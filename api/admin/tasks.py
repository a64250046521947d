"""/v1/admin/tasks: every tenant's tasks, without what they said and were told."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query, Request

from api.admin.edge import Administrator, Paged, admin_router, page_object
from api.json import JsonResponse
from api.state import state_of
from api.task_object import task_object
from core.states import TaskState
from services.oversee_tasks import list_any, read_any, read_purged, retry_any
from storage.records import Task

router = admin_router()


def _object(task: Task) -> dict[str, Any]:
    # metadata is the tenant's, as its prompts are
    return {**task_object(task), "tenant_id": task.tenant_id, "metadata": None}


@router.get("/tasks")
async def list_(
    request: Request,
    page: Paged,
    tenant: str | None = None,
    model: str | None = None,
    status: Annotated[list[TaskState] | None, Query()] = None,
    dead: bool = False,
) -> JsonResponse:
    """List tasks, of one tenant or model or of all; `dead`: those that ran out of attempts."""
    found, has_more = await list_any(
        state_of(request).database, page, tenant=tenant, model=model, states=status or (), dead=dead
    )
    return JsonResponse(page_object([_object(task) for task in found], has_more))


@router.get("/tasks/{task_id}")
async def get(request: Request, task_id: str) -> JsonResponse:
    """Describe a task; of one whose bodies are gone, their lengths and keyed hashes."""
    database = state_of(request).database
    task = await read_any(database, task_id)
    purged = await read_purged(database, task_id) if task.purged else None
    return JsonResponse({**_object(task), "purged_bodies": asdict(purged) if purged else None})


@router.post("/tasks/{task_id}/retry", status_code=202)
async def retry(request: Request, actor: Administrator, task_id: str) -> JsonResponse:
    """Do a failed task again, for its tenant, as a new task: 202 with that one."""
    state = state_of(request)
    again = await retry_any(state.database, actor, task_id)
    state.publisher.put(again)
    return JsonResponse(_object(await read_any(state.database, again.task_id)), 202)
