"""Make, change, rotate and revoke API keys. A key's text is returned once and kept nowhere."""

import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from core.keys import make_key
from core.scopes import Scope
from services.change import ConflictError, MissingError, changing
from services.manage_tenants import require_tenant
from services.new_id import new_id
from storage import identities
from storage.audit import Actor
from storage.autocommit import autocommit
from storage.identities import ApiKey
from storage.paging import Page


async def _require(connection: AsyncConnection, id_or_lookup: str, *, lock: bool = False) -> ApiKey:
    found = await identities.get_key(connection, id_or_lookup, lock=lock)
    if found is None:
        raise MissingError("key", id_or_lookup)
    return found


async def _insert(
    connection: AsyncConnection,
    pepper: bytes,
    *,
    tenant_id: str,
    name: str,
    scopes: Iterable[Scope],
    expires_at: datetime | None,
    first_id: str | None = None,
) -> tuple[ApiKey, str]:
    key = make_key(secrets.token_bytes(44), pepper)
    stored = await identities.insert_key(
        connection,
        key_id=new_id("key"),
        tenant_id=tenant_id,
        name=name,
        lookup=key.lookup,
        digest=key.digest,
        scopes=scopes,
        expires_at=expires_at,
        first_id=first_id,
    )
    return stored, key.text


async def add_key(
    database: AsyncEngine,
    actor: Actor,
    pepper: bytes,
    *,
    tenant: str,
    name: str,
    scopes: Iterable[Scope],
    expires_at: datetime | None,
) -> tuple[ApiKey, str]:
    """Make a key; return it and its text.

    Raises: MissingError; ConflictError when a key of the tenant in force has the name.
    """
    async with changing(database, actor) as change:
        # the lock makes two calls of the same name one after the other
        owner = await require_tenant(change.connection, tenant, lock=True)
        if await identities.find_key_named(change.connection, owner.id, name):
            raise ConflictError(
                "key_exists", f"Tenant {owner.name!r} has a key {name!r} in force: rotate or revoke that."
            )
        stored, text = await _insert(
            change.connection, pepper, tenant_id=owner.id, name=name, scopes=scopes, expires_at=expires_at
        )
        await change.record("key.create", stored.id, tenant_id=owner.id, after=stored)
    return stored, text


async def change_key(
    database: AsyncEngine, actor: Actor, id_or_lookup: str, changes: dict[str, Any]
) -> ApiKey:
    """Change the `scopes`, `name` or `expires_at` of a key that is not revoked. Raises: MissingError, ConflictError."""
    async with changing(database, actor) as change:
        before = await _require(change.connection, id_or_lookup, lock=True)
        if before.revoked_at is not None:
            raise ConflictError("key_revoked", "A revoked key stays as it is.")
        if not changes:
            return before
        after = await identities.update_key(change.connection, before.id, changes)
        await change.record("key.change", before.id, tenant_id=before.tenant_id, before=before, after=after)
        return after


async def rotate_key(
    database: AsyncEngine, actor: Actor, pepper: bytes, id_or_lookup: str, *, overlap_s: float
) -> tuple[ApiKey, str]:
    """Make a key that takes another's place, which ends after the overlap; return the new one and its text.

    It has the same name and scopes, and the same time to live; limits and budgets of the one are those of the other,
    and what was spent of them. Raises: MissingError, ConflictError.
    """
    async with changing(database, actor) as change:
        connection = change.connection
        old = await _require(connection, id_or_lookup, lock=True)
        if old.revoked_at is not None or old.replaced_by is not None:
            what = "revoked" if old.revoked_at is not None else f"rotated into {old.replaced_by}"
            raise ConflictError("key_not_in_force", f"The key was {what}.")
        stored, text = await _insert(
            connection,
            pepper,
            tenant_id=old.tenant_id,
            name=old.name,
            scopes=old.scopes,
            expires_at=None,
            first_id=old.first_id,
        )
        if old.expires_at is not None:
            lifetime = old.expires_at - old.created_at
            stored = await identities.update_key(
                connection, stored.id, {"expires_at": stored.created_at + lifetime}
            )
        ended = await identities.end_by(connection, old.id, within_s=overlap_s, replaced_by=stored.id)
        await change.record("key.rotate", old.id, tenant_id=old.tenant_id, before=old, after=ended)
        await change.record("key.create", stored.id, tenant_id=old.tenant_id, after=stored)
    return stored, text


async def revoke_key(database: AsyncEngine, actor: Actor, id_or_lookup: str) -> ApiKey:
    """Revoke a key: every API process refuses it within a second. Again: nothing changes. Raises: MissingError."""
    async with changing(database, actor) as change:
        before = await _require(change.connection, id_or_lookup, lock=True)
        after = await identities.revoke_key(change.connection, before.id)
        await change.record("key.revoke", before.id, tenant_id=before.tenant_id, before=before, after=after)
        return after


async def read_key(database: AsyncEngine, id_or_lookup: str) -> ApiKey:
    """Read a key, without its text, which nobody has. Raises: MissingError."""
    async with autocommit(database) as connection:
        return await _require(connection, id_or_lookup)


async def list_keys(
    database: AsyncEngine, page: Page, *, tenant: str | None, name: str | None, in_force: bool
) -> tuple[list[ApiKey], bool]:
    """List keys and whether there are more. Raises: MissingError for an unknown tenant."""
    async with autocommit(database) as connection:
        tenant_id = (await require_tenant(connection, tenant)).id if tenant is not None else None
        return await identities.list_keys(connection, page, tenant_id=tenant_id, name=name, in_force=in_force)
