"""What a tenant sets and reads about its webhooks: secrets, disabled URLs, deliveries."""

from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from core.webhooks import secret_of
from services.new_id import new_id
from storage import webhook_secrets, webhooks
from storage.autocommit import autocommit


async def create_secret(
    database: AsyncEngine, tenant_id: str, *, pepper: bytes, overlap_s: float
) -> tuple[str, str, datetime]:
    """Make a secret (id, text, when); earlier ones go on signing for the overlap. The text is shown once."""
    secret_id = new_id("whs")
    async with database.begin() as connection:
        made_at = await webhook_secrets.insert_secret(connection, secret_id, tenant_id, overlap_s)
    return secret_id, secret_of(secret_id, pepper), made_at


async def list_secrets(database: AsyncEngine, tenant_id: str) -> list[tuple[str, datetime, datetime | None]]:
    """List (id, made, ends) of the secrets that sign now, newest first."""
    async with autocommit(database) as connection:
        return await webhook_secrets.list_secrets(connection, tenant_id)


async def end_secret(database: AsyncEngine, tenant_id: str, secret_id: str) -> bool:
    """End a secret now; False when it does not sign."""
    async with autocommit(database) as connection:
        return await webhook_secrets.end_secret(connection, tenant_id, secret_id)


async def why_unusable(database: AsyncEngine, tenant_id: str, url: str) -> str | None:
    """Say why nothing would be sent to a URL for a tenant; None when it would."""
    async with autocommit(database) as connection:
        if not await webhook_secrets.list_secrets(connection, tenant_id):
            return "needs a secret to sign with: POST /v1/webhooks/secrets makes one"
        if await webhooks.which_disabled(connection, [(tenant_id, url)]):
            return "answered 410 and is disabled: see GET /v1/webhooks/disabled"
    return None


async def list_disabled(database: AsyncEngine, tenant_id: str) -> list[tuple[str, str, datetime]]:
    """List (id, URL, since) of URLs that answered 410."""
    async with autocommit(database) as connection:
        return await webhooks.list_disabled(connection, tenant_id)


async def enable(database: AsyncEngine, tenant_id: str, disabled_id: str) -> bool:
    """Let a URL be used again; False when it was not disabled."""
    async with autocommit(database) as connection:
        return await webhooks.enable(connection, tenant_id, disabled_id)


async def list_deliveries(database: AsyncEngine, tenant_id: str, *, limit: int, **which: Any) -> list[Any]:
    """List deliveries with their tries, newest first; see `storage.webhooks.list_deliveries`."""
    async with autocommit(database) as connection:
        return await webhooks.list_deliveries(connection, tenant_id, limit=limit, **which)
