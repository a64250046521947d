"""/v1/admin/models: what is registered, whoever may use it. Names may hold slashes."""

import asyncio
from pathlib import Path
from typing import Any

from fastapi import Request

from api.admin.edge import Administrator, Paged, admin_router, page_object, read_body
from api.body import takes
from api.state import state_of
from core.lanes import LengthBounds
from core.times import seconds_of
from runtime.model_folder import context_of
from schemas.admin import ModelName, ModelPut
from schemas.errors import RequestError
from services.manage_models import delete_model, list_models, put_model, read_model
from storage.records import Model, SyncLimits

router = admin_router()


def _object(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model_registration",
        "path": model.path,
        "max_model_len": model.max_model_len,
        "default_max_tokens": model.default_max_tokens,
        "short_tokens": model.bounds.short,
        "medium_tokens": model.bounds.medium,
        "tool_parser": model.tool_parser,
        "reasoning_parser": model.reasoning_parser,
        "probe_prompt": model.probe_prompt,
        "probe_words": model.probe_words,
        "version": model.version,
        "sync_start_s": model.sync_start_s,
        "sync_finish_s": model.sync_finish_s,
        "sync_stream_s": model.sync_stream_s,
        "created_at": seconds_of(model.created_at),
    }


@router.get("/models")
async def list_(request: Request, page: Paged) -> dict[str, Any]:
    """List registered models."""
    found, has_more = await list_models(state_of(request).database, page)
    return page_object([_object(model) for model in found], has_more)


@router.get("/models/{model:path}")
async def get(request: Request, model: str) -> dict[str, Any]:
    """Describe a registered model."""
    return _object(await read_model(state_of(request).database, model))


@router.put("/models/{model:path}", openapi_extra=takes(ModelPut))
async def put(request: Request, actor: Administrator, model: ModelName) -> dict[str, Any]:
    """Register a model whose folder this process sees, or change its registration."""
    asked = await read_body(request, ModelPut)
    path = Path(asked.path)
    try:
        context = await asyncio.to_thread(context_of, path, asked.max_model_len)
        bounds = LengthBounds(asked.short_tokens, asked.medium_tokens)
    except (OSError, ValueError) as error:
        raise RequestError(400, f"The model can't be served: {error}", "model_unusable", "path") from error
    database = state_of(request).database
    return _object(
        await put_model(
            database,
            actor,
            model,
            path=str(path),
            max_model_len=context,
            default_max_tokens=asked.default_max_tokens,
            bounds=bounds,
            tool_parser=asked.tool_parser,
            reasoning_parser=asked.reasoning_parser,
            probe_prompt=asked.probe_prompt,
            probe_words=asked.probe_words,
            sync=SyncLimits(asked.sync_start_s, asked.sync_finish_s, asked.sync_stream_s),
            version=asked.version,
        )
    )


@router.delete("/models/{model:path}")
async def delete(request: Request, actor: Administrator, model: str) -> dict[str, Any]:
    """Take a model out of service, with its grants; refused while tasks for it are queued or running."""
    deleted = await delete_model(state_of(request).database, actor, model)
    return {"id": deleted.name, "object": "model_registration", "deleted": True}
