"""Who may enter: `Authorization: Bearer hr_…`, and what the key's scopes open.

A route takes `Caller`: looking (GET, HEAD) needs the scope `read`, everything else `submit`. What is under
/v1/admin takes `Admin` and needs `admin`. No scope implies another.
"""

from typing import Annotated

from fastapi import Depends, Request

from api.state import state_of
from core.scopes import Scope
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
    if access.disabled:
        raise RequestError(403, "The key's tenant is disabled.", "tenant_disabled")
    return access


def _require(access: Access, scope: Scope) -> Access:
    if scope not in access.scopes:
        raise RequestError(
            403,
            f"The API key lacks the scope {scope!r}.",
            "insufficient_scope",
            headers={"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},  # RFC 6750
        )
    return access


_Known = Annotated[Access, Depends(_access)]


async def _caller(request: Request, access: _Known) -> Access:
    return _require(access, Scope.READ if request.method in ("GET", "HEAD") else Scope.SUBMIT)


async def admin(access: _Known) -> Access:
    """Let administrators in."""
    return _require(access, Scope.ADMIN)


Caller = Annotated[Access, Depends(_caller)]
Admin = Annotated[Access, Depends(admin)]
