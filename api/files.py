"""/v1/files: upload, list, retrieve, delete, content."""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from api.auth import Caller
from api.file_object import file_object
from api.json import JsonResponse
from api.queries import PageSize
from api.state import ApiState, state_of
from api.uploads import take_upload
from core.ids import looks_like_id
from schemas.errors import RequestError
from schemas.files import FORM_FIELDS
from services.read_files import find_file, list_file_page
from services.remove_files import delete_file
from storage.blobs import file_key
from storage.files import StoredFile

router = APIRouter(tags=["files"])
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        **{name: {"type": "string"} for name in FORM_FIELDS[1:]},
    },
}


def not_found(file_id: str, param: str | None = None) -> RequestError:
    """404, the same for an unknown id and for another tenant's."""
    return RequestError(404, f"No file {file_id!r}.", "file_not_found", param)


async def find(state: ApiState, access: Caller, file_id: str, param: str | None = None) -> StoredFile:
    """Read one of the caller's files. Raises: RequestError 404."""
    file = None
    if looks_like_id("file", file_id):
        file = await find_file(state.database, access.caller.tenant_id, file_id)
    if file is None:
        raise not_found(file_id, param)
    return file


@router.post(
    "/v1/files",
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}},
)
async def create(request: Request, access: Caller) -> Response:
    """Upload a file."""
    file = await take_upload(state_of(request), access.caller.tenant_id, request)
    return JsonResponse(file_object(file))


@router.get("/v1/files")
async def list_(
    request: Request,
    access: Caller,
    limit: PageSize = 100,
    after: str | None = None,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    purpose: str | None = None,
) -> Response:
    """List the tenant's files, newest first unless asked otherwise."""
    if after is not None and not looks_like_id("file", after):
        raise not_found(after, "after")
    page = await list_file_page(
        state_of(request).database,
        access.caller.tenant_id,
        limit=limit,
        newest_first=order == "desc",
        after=after,
        purpose=purpose,
    )
    if page is None:
        raise not_found(str(after), "after")
    found, has_more = page
    return JsonResponse(page_object([file_object(file) for file in found], has_more))


def page_object(data: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """Build a page of a list; `after` = `last_id` gives the next one."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


@router.get("/v1/files/{file_id}")
async def get(request: Request, access: Caller, file_id: str) -> Response:
    """Describe one file."""
    return JsonResponse(file_object(await find(state_of(request), access, file_id)))


@router.delete("/v1/files/{file_id}")
async def delete(request: Request, access: Caller, file_id: str) -> Response:
    """Delete a file: gone at once for its owner, its bytes soon."""
    state = state_of(request)
    file = await find(state, access, file_id)
    await delete_file(state.database, access.caller.tenant_id, file.id)
    return JsonResponse({"id": file.id, "object": "file", "deleted": True})


@router.get("/v1/files/{file_id}/content")
async def content(request: Request, access: Caller, file_id: str) -> Response:
    """Send a file's bytes as they were sent here."""
    state = state_of(request)
    file = await find(state, access, file_id)
    return StreamingResponse(
        state.blobs.reading(file_key(file.id)),
        media_type="application/octet-stream",
        headers={
            "Content-Length": str(file.bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.filename)}",
            "X-Content-Type-Options": "nosniff",
        },
    )
