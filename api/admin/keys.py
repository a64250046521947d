"""/v1/admin/keys. `{key}` is a key's id or its first 15 characters, which are no secret."""

from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from api.admin.edge import Administrator, Paged, admin_router, page_object, read_body
from api.body import takes
from api.json import JsonResponse
from api.state import ApiState, state_of
from core import keys
from core.times import seconds_of
from schemas.admin import KeyChange, KeyCreate, KeyRotate
from schemas.errors import RequestError
from services.manage_keys import add_key, change_key, list_keys, read_key, revoke_key, rotate_key
from storage.identities import ApiKey

router = admin_router()
# a key's text is in this one answer: no cache on the way may keep it
_ONCE = {"Cache-Control": "no-store"}


def _object(key: ApiKey, text: str | None = None) -> dict[str, Any]:
    shown = {"key": text} if text is not None else {}
    return {
        "id": key.id,
        "object": "api_key",
        **shown,
        "prefix": key.lookup,
        "tenant_id": key.tenant_id,
        "name": key.name,
        "scopes": key.scopes,
        "created_at": seconds_of(key.created_at),
        "expires_at": seconds_of(key.expires_at),
        "revoked_at": seconds_of(key.revoked_at),
        "last_used_at": seconds_of(key.last_used_at),
        "replaced_by": key.replaced_by,
        "first_id": key.first_id,
    }


def _named(key: str) -> str:
    if key.startswith(keys.PREFIX) and key != keys.lookup_of(key):
        raise RequestError(
            400,
            "Name a key by its id or its first 15 characters, never by all of it.",
            "invalid_value",
            "key",
        )
    return key


def _pepper(state: ApiState) -> bytes:
    return state.settings.key_pepper.get_secret_value().encode()


def _expiry(in_s: float | None) -> datetime | None:
    return None if in_s is None else datetime.now(UTC) + timedelta(seconds=in_s)


@router.get("/keys")
async def list_(
    request: Request, page: Paged, tenant: str | None = None, name: str | None = None, in_force: bool = False
) -> dict[str, Any]:
    """List keys of one tenant or of all; `in_force`: neither revoked nor expired."""
    database = state_of(request).database
    found, has_more = await list_keys(database, page, tenant=tenant, name=name, in_force=in_force)
    return page_object([_object(key) for key in found], has_more)


@router.post("/keys", status_code=201, openapi_extra=takes(KeyCreate))
async def create(request: Request, actor: Administrator) -> Response:
    """Make a key. Its text is in the answer, and nowhere else."""
    state = state_of(request)
    asked = await read_body(request, KeyCreate)
    stored, text = await add_key(
        state.database,
        actor,
        _pepper(state),
        tenant=asked.tenant,
        name=asked.name,
        scopes=asked.scopes,
        expires_at=_expiry(asked.expires_in_s),
    )
    return JsonResponse(_object(stored, text), 201, _ONCE)


@router.get("/keys/{key}")
async def get(request: Request, key: str) -> dict[str, Any]:
    """Describe a key."""
    return _object(await read_key(state_of(request).database, _named(key)))


@router.patch("/keys/{key}", openapi_extra=takes(KeyChange))
async def change(request: Request, actor: Administrator, key: str) -> dict[str, Any]:
    """Change a key's name, scopes or time to live."""
    asked = await read_body(request, KeyChange)
    given = asked.model_dump(exclude_unset=True)
    changes: dict[str, Any] = {name: given[name] for name in ("name",) if name in given}
    if "scopes" in given:
        changes["scopes"] = sorted(asked.scopes)
    if "expires_in_s" in given:
        changes["expires_at"] = _expiry(asked.expires_in_s)
    return _object(await change_key(state_of(request).database, actor, _named(key), changes))


@router.post("/keys/{key}/rotate", status_code=201, openapi_extra=takes(KeyRotate))
async def rotate(request: Request, actor: Administrator, key: str) -> Response:
    """Make a key that takes this one's place; this one ends after the overlap."""
    state = state_of(request)
    asked = await read_body(request, KeyRotate)
    stored, text = await rotate_key(
        state.database, actor, _pepper(state), _named(key), overlap_s=asked.overlap_s
    )
    return JsonResponse(_object(stored, text), 201, _ONCE)


@router.post("/keys/{key}/revoke")
async def revoke(request: Request, actor: Administrator, key: str) -> dict[str, Any]:
    """Revoke a key: refused by every API process within a second. What it submitted goes on."""
    return _object(await revoke_key(state_of(request).database, actor, _named(key)))
