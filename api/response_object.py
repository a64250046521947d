"""The response as its owner sees it: computed from the task and its chat completion."""

from typing import Any

import orjson
from redis.exceptions import RedisError

from api.state import ApiState
from core.failures import Failure
from core.states import FINAL, TaskState
from schemas.events import failure_object
from schemas.response_items import output_items
from services.look_up import read_response
from storage.records import Task
from storage.responses import Response

_OPEN: dict[str, Any] = {"status": "queued", "output": [], "usage": None, "completed_at": None, "error": None}
_STATUS = {
    TaskState.QUEUED: "queued",
    TaskState.IN_PROGRESS: "in_progress",
    TaskState.CANCELLING: "in_progress",
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.EXPIRED: "failed",
    TaskState.INCOMPLETE: "incomplete",
    TaskState.CANCELLED: "cancelled",
}
_CUT = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}  # ends that leave an answer incomplete


async def render(state: ApiState, response: Response) -> dict[str, Any]:
    """Build a response's wire form with its output, read where it is found soonest."""
    answer = None
    if response.task.state in FINAL:
        try:
            answer = await state.streams.get_result(response.task.id)
        except RedisError:
            answer = None
        answer = answer or await read_response(state.database, response.task.id)
        state.note_delivered(response.task)
    return response_object(response, answer)


def response_object(response: Response, answer: str | None = None) -> dict[str, Any]:
    """Build the wire form; `answer` is the chat completion (JSON text) of a response that has one."""
    task, asked = response.task, orjson.loads(response.request)
    status, incomplete = _STATUS[task.state], None
    if task.state is TaskState.COMPLETED and task.finish_reason in _CUT:
        status, incomplete = "incomplete", {"reason": _CUT[task.finish_reason]}
    elif task.state is TaskState.INCOMPLETE:
        incomplete = {"reason": "deadline"}
    whole = "completed" if status == "completed" else "incomplete"
    output = output_of(answer, response.id, whole) if answer is not None else []
    return {
        "id": response.id,
        "object": "response",
        "created_at": int(task.created_at.timestamp()),
        "status": status,
        "background": response.background,
        "completed_at": int(task.finished_at.timestamp()) if task.finished_at else None,
        "error": _error(task),
        "incomplete_details": incomplete,
        "instructions": asked.get("instructions"),
        "max_output_tokens": asked.get("max_output_tokens"),
        "metadata": task.metadata,
        "model": task.lane.model,
        "output": output,
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "previous_response_id": response.previous_id,
        "prompt_cache_key": asked.get("prompt_cache_key"),
        "reasoning": {"effort": (asked.get("reasoning") or {}).get("effort"), "summary": None},
        "safety_identifier": asked.get("safety_identifier"),
        "service_tier": "default",
        "store": asked.get("store", True),
        "temperature": asked.get("temperature", 1.0),
        "text": {"format": {"type": "text"}} | asked.get("text", {}),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        "top_logprobs": asked.get("top_logprobs", 0),
        "top_p": asked.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": _usage(task, answer),
        "user": asked.get("user"),
    }


def output_of(answer: str, response_id: str, status: str = "completed") -> list[dict[str, Any]]:
    """The output items of a chat completion (JSON text)."""
    choice = orjson.loads(answer)["choices"][0]
    logprobs = (choice.get("logprobs") or {}).get("content")
    return output_items(choice["message"], logprobs, response_id, status)


def as_accepted(rendered: dict[str, Any], status: str) -> dict[str, Any]:
    """Return a response as it was before it had anything to show: for the first events of its stream."""
    return rendered | _OPEN | {"status": status, "incomplete_details": None}


def _usage(task: Task, answer: str | None) -> dict[str, Any] | None:
    usage = task.usage
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": _reasoning(answer),
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _reasoning(answer: str | None) -> dict[str, int]:
    """What the answer's own usage says of it; empty where the engine could not count."""
    if answer is None or '"completion_tokens_details"' not in answer:
        return {}
    details = orjson.loads(answer)["usage"].get("completion_tokens_details") or {}
    return {"reasoning_tokens": details["reasoning_tokens"]} if "reasoning_tokens" in details else {}


def _error(task: Task) -> dict[str, Any] | None:
    if _STATUS[task.state] != "failed":
        return None
    # the codes are OpenAI's, whose clients know no other; which of ours it was is in the task
    told = failure_object(task.failure, task.failure_message) or {"message": f"The task {task.state}."}
    code = "invalid_prompt" if task.failure is Failure.REQUEST_REJECTED else "server_error"
    return {"code": code, "message": told["message"]}
