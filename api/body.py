"""Reading a request body: bounded, JSON, and a clear 4xx for everything else."""

from typing import Any

import orjson
from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from api.sse import ClientGoneError
from schemas.errors import RequestError
from schemas.json_text import DuplicateKeyError, parse


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a JSON body that `read_json` reads, for a route's OpenAPI."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def read_json(request: Request, max_bytes: int) -> tuple[bytes, dict[str, Any]]:
    """Read the body as bytes and as an object. Raises: RequestError 400, 413, 415, ClientGoneError."""
    kind = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise RequestError(415, "The body must be application/json.", "unsupported_media_type")
    too_large = RequestError(413, f"The body is larger than {max_bytes} bytes.", "request_too_large")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    raw = bytearray()
    try:
        async for piece in request.stream():  # a chunked body declares no length
            raw += piece
            if len(raw) > max_bytes:
                raise too_large
    except ClientDisconnect as error:
        raise ClientGoneError from error
    try:
        parsed = parse(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"The body is not valid JSON: {error}.", "invalid_json") from error
    except DuplicateKeyError as error:
        raise RequestError(400, f"Invalid body: {error}.", "duplicate_parameter", error.key) from error
    if not isinstance(parsed, dict):
        raise RequestError(400, "The body must be a JSON object.", "invalid_json")
    return bytes(raw), parsed
