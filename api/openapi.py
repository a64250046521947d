"""The OpenAPI document: FastAPI's, with the schemas of bodies that we read ourselves in their place."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_REFUSED = {
    "description": "Refused or failed; the status says whose fault it is, the code why.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def install(app: FastAPI) -> None:
    """Make the application's document."""
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(_described(app))
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _described(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own envelope, which is not ours
        schemas.pop(unused, None)
    schemas["Error"] = _ERROR
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = _REFUSED
            if path.startswith("/v1/"):
                operation["security"] = [{"key": []}]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                schemas |= content["schema"].pop("$defs", {})
    return document
