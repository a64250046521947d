"""/v1/models: those that the caller may use; the others do not exist."""

from typing import Any

from fastapi import APIRouter

from api.auth import Caller
from runtime.prepare import find_model
from storage.records import Model

router = APIRouter(tags=["openai"])


def _object(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": int(model.created_at.timestamp()),
        "owned_by": model.owned_by,
        "max_model_len": model.max_model_len,
    }


@router.get("/v1/models")
async def list_(access: Caller) -> dict[str, Any]:
    """List the caller's models."""
    return {"object": "list", "data": [_object(model) for model in access.models.values()]}


@router.get("/v1/models/{model:path}")
async def get(model: str, access: Caller) -> dict[str, Any]:
    """Describe one model; names may hold slashes."""
    return _object(find_model(access, model, "model"))
