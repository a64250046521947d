"""Who may enter: `Authorization: Bearer hr_…`."""

from typing import Annotated

from fastapi import Depends, Request

from api.state import state_of
from schemas.errors import RequestError
from services.authenticate import Access


async def _access(request: Request) -> Access:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise RequestError(
            401,
            "No API key: send it as `Authorization: Bearer …`.",
            "missing_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    access = await state_of(request).access.get(key.strip())
    if access is None:
        raise RequestError(
            401, "The API key is not valid.", "invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
        )
    return access


Caller = Annotated[Access, Depends(_access)]
