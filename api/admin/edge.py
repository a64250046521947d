"""What the resources of /v1/admin share: the scope, who acts, pages."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request

from api.auth import Admin, admin
from api.body import read_json
from api.queries import PageSize
from api.state import state_of
from schemas.requests import validate
from schemas.strict import Strict
from storage.audit import Actor
from storage.paging import Page

Body = TypeVar("Body", bound=Strict)


def admin_router() -> APIRouter:
    """Make a router whose every route needs the scope `admin`, whether or not it asks who acts."""
    return APIRouter(prefix="/v1/admin", tags=["admin"], dependencies=[Depends(admin)])


def _actor(request: Request, access: Admin) -> Actor:
    return Actor(access.name, access.key_id, request.state.request_id)


Administrator = Annotated[Actor, Depends(_actor)]


def _page(
    limit: PageSize = 20,
    after: Annotated[str | None, Query(max_length=400)] = None,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
) -> Page:
    return Page(limit, after, order == "desc")


Paged = Annotated[Page, Depends(_page)]


async def read_body(request: Request, schema: type[Body]) -> Body:
    """Read and validate a body. Raises: RequestError 400, 413, 415."""
    _, parsed = await read_json(request, state_of(request).settings.max_body_bytes)
    return validate(schema, parsed)


def page_object(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """Build a page's wire form; each of `data` has an `id`, and the next page is after the last one's."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
