"""Who is asking, and what may they use."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from core import keys
from storage import identities, registry
from storage.autocommit import autocommit
from storage.records import Caller, Model


@dataclass(frozen=True, slots=True)
class Access:
    """A caller with the models that exist for it."""

    caller: Caller
    models: dict[str, Model]


async def authenticate(database: AsyncEngine, key_text: str, pepper: bytes) -> Access | None:
    """Return what the key gives access to; None for a key that is wrong, revoked or expired."""
    if not keys.is_well_formed(key_text):
        return None
    async with autocommit(database) as connection:
        stored = await identities.find_key(connection, keys.lookup_of(key_text))
        if stored is None or not keys.matches(key_text, pepper, stored.digest):
            return None
        models = await registry.granted_models(connection, stored.tenant_id)
    return Access(Caller(stored.id, stored.tenant_id), {model.name: model for model in models})
