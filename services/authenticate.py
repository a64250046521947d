"""Who is asking, and what may they use?"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from core import keys
from core.budgets import Standing
from core.lanes import Lane
from core.limits import RateLimit
from core.pricing import hold_usd_micros
from core.scopes import Scope
from storage import budgets, identities, limits, registry, tariffs
from storage.autocommit import autocommit
from storage.records import Caller, Model
from storage.tariffs import PriceList

# what a key that nobody has is compared with: an unknown key takes as long as a wrong one
_NOBODYS = bytes(32)


@dataclass(frozen=True, slots=True)
class Access:
    """A caller with the models that exist for it."""

    caller: Caller
    models: dict[str, Model]  # with the grants' limits
    key_id: str = ""  # the one used; the caller's is that of its first rotation
    scopes: frozenset[Scope] = frozenset()
    name: str = ""  # of the key, for people
    disabled: bool = False  # its tenant is: nothing is open to it
    limits: tuple[RateLimit, ...] = ()  # of the key, of its tenant, and of its tenant on models
    budgets: tuple[Standing, ...] = ()  # that its tasks count against, as they stood when it was looked up
    prices: PriceList | None = None  # where there are budgets

    def hold_of(self, lane: Lane, prompt_tokens: int, max_output_tokens: int) -> int | None:
        """What a task holds of the budgets, in micro-USD; None: there are none."""
        if self.prices is None:
            return None
        return hold_usd_micros(prompt_tokens, max_output_tokens, self.prices.of(lane))


async def authenticate(database: AsyncEngine, key_text: str, pepper: bytes) -> Access | None:
    """Return what the key gives access to; None for a key that is wrong, revoked or expired."""
    if not keys.is_well_formed(key_text):
        return None
    lookup = keys.lookup_of(key_text)
    async with autocommit(database) as connection:
        stored = await identities.find_key(connection, lookup)
        if not keys.matches(key_text, pepper, stored.digest if stored else _NOBODYS) or stored is None:
            return None
        models = await registry.granted_models(connection, stored.tenant_id)
        rates = await limits.limits_of(connection, stored.tenant_id, stored.first_id)
        standings, prices = await _budgets_of(connection, stored.tenant_id, stored.first_id, models)
    return Access(
        Caller(stored.first_id, stored.tenant_id, stored.tenant_class),
        {model.name: model for model in models},
        stored.id,
        stored.scopes,
        f"{lookup} ({stored.name})",
        stored.tenant_disabled,
        tuple(rates),
        standings,
        prices,
    )


async def note_uses(database: AsyncEngine, used: dict[str, float]) -> int:
    """Note when keys (by id, seconds since the epoch) were last used; return how many were written."""
    async with autocommit(database) as connection:
        return await identities.note_uses(connection, used)


async def access_of(database: AsyncEngine, caller: Caller) -> Access:
    """Return what a caller known from before has access to now."""
    async with autocommit(database) as connection:
        models = await registry.granted_models(connection, caller.tenant_id)
        standings, prices = await _budgets_of(connection, caller.tenant_id, caller.key_id, models)
    return Access(caller, {model.name: model for model in models}, budgets=standings, prices=prices)


async def _budgets_of(
    connection: AsyncConnection, tenant_id: str, key_id: str, models: Sequence[Model]
) -> tuple[tuple[Standing, ...], PriceList | None]:
    """The budgets that a caller's tasks count against, and what those cost; no prices where there are none."""
    standings = await budgets.standings_of(connection, tenant_id, key_id)
    if not standings:
        return (), None
    return tuple(standings), await tariffs.prices_in_force(connection, [model.name for model in models])
