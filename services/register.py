"""Set up what must exist before the first request, over the database alone: tenant, key, model, grant."""

import secrets
from collections.abc import Callable, Iterable, Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from core.keys import make_key
from core.lanes import LengthBounds
from core.pricing import Tariff
from core.scopes import USUAL, Scope
from services.change import changing
from services.new_id import new_id
from storage import grants, identities, registry, tariffs, tenants
from storage.audit import Actor


async def create_key(
    database: AsyncEngine,
    *,
    tenant: str,
    name: str,
    pepper: bytes,
    scopes: Iterable[Scope] = USUAL,
    keep: Callable[[str], None] | None = None,
) -> str:
    """Create a key for a tenant (created when missing); return its text, which is not stored.

    `keep` gets the text before the key exists for anybody: what it raises leaves no key behind.
    """
    key = make_key(secrets.token_bytes(44), pepper)
    async with changing(database, Actor("headrace bootstrap")) as change:
        tenant_id = await tenants.ensure_tenant(change.connection, new_id("tenant"), tenant)
        stored = await identities.insert_key(
            change.connection,
            key_id=new_id("key"),
            tenant_id=tenant_id,
            name=name,
            lookup=key.lookup,
            digest=key.digest,
            scopes=scopes,
        )
        await change.record("key.create", stored.id, tenant_id=tenant_id, after=stored)
        if keep is not None:
            keep(key.text)
    return key.text


async def register_model(
    database: AsyncEngine,
    *,
    name: str,
    path: str,
    max_model_len: int,
    default_max_tokens: int | None,
    bounds: LengthBounds,
    tariff: Tariff,
    tenant: str,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    probe_prompt: str | None = None,
    probe_words: Sequence[str] = (),
    version: str | None = None,
) -> None:
    """Register or change a model and grant it to a tenant; limits of a grant that exists stay."""
    async with changing(database, Actor("headrace model add")) as change:
        connection = change.connection
        before = await registry.get_model(connection, name)
        await registry.put_model(
            connection,
            name=name,
            path=path,
            max_model_len=max_model_len,
            default_max_tokens=default_max_tokens,
            bounds=bounds,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            probe_prompt=probe_prompt,
            probe_words=probe_words,
            version=version,
        )
        await change.record(
            "model.put", name, before=before, after=await registry.get_model(connection, name)
        )
        await tariffs.put_tariff(connection, name, tariff)
        tenant_id = await tenants.ensure_tenant(connection, new_id("tenant"), tenant)
        await grants.ensure_grant(connection, tenant_id, name)
