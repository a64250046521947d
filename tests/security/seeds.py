"""What the role × route table's calls need: keys of every role, and objects to name in paths."""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from core.scopes import Scope
from services.cancel import cancel
from services.manage_budgets import put_budget
from services.manage_keys import add_key, revoke_key
from services.manage_limits import put_limit
from services.manage_tariffs import add_tariff
from services.manage_tenants import change_tenant
from services.manage_webhooks import create_secret
from services.new_id import new_id
from services.register import create_key
from services.submit import submit
from storage import identities, webhooks
from storage.audit import Actor
from storage.records import Caller, NewResponse
from tests.support.seeds import MODEL, PEPPER, new_task, seed_caller, seed_task

OPERATOR = Actor("test")


class World:
    """Tenants `owner` and `other`, who may use one model each, with keys of every role."""

    def __init__(self, database: AsyncEngine) -> None:
        self.database = database
        self.keys: dict[str, str] = {}  # key texts by role
        self.http: httpx.AsyncClient  # on the application, once that runs
        self.owner: Caller

    async def make(self) -> "World":
        """Fill the database."""
        self.owner = await seed_caller(self.database, "owner")
        await seed_task(self.database, self.owner)  # keeps the model in use
        for name in ("revoked", "expired", "all", *Scope):
            self.keys[name] = await self._key(
                "owner", name, [Scope(name)] if name in list(Scope) else list(Scope)
            )
        for scope in Scope:
            self.keys[f"other {scope}"] = await self._key("other", scope, [scope])
            self.keys[f"disabled {scope}"] = await self._key("disabled", scope, [scope])
        await self._revoke("revoked")
        async with self.database.begin() as connection:
            expired = await identities.find_key_named(connection, self.owner.tenant_id, "expired")
            assert expired is not None
            await identities.end_by(connection, expired.id, within_s=0, replaced_by="")
        await change_tenant(self.database, OPERATOR, "disabled", {"disabled": True}, of="")
        return self

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """Call a route as the owner, who may do everything there; return the answer's JSON."""
        headers = {"Authorization": f"Bearer {self.keys['all']}"}
        answer = await self.http.request(method, path, headers=headers, **options)
        assert answer.is_success, answer.text
        return answer.json()

    async def _key(self, tenant: str, name: str, scopes: list[Scope]) -> str:
        return await create_key(self.database, tenant=tenant, name=name, pepper=PEPPER, scopes=scopes)

    async def _revoke(self, name: str) -> None:
        await revoke_key(self.database, OPERATOR, self.keys[name][:15])


async def _task(world: World) -> str:
    # one that ended: following it ends too
    task = await seed_task(world.database, world.owner)
    await cancel(world.database, world.owner.tenant_id, task.id)
    return task.id


async def _response(world: World) -> str:
    response = NewResponse(new_id("resp"), None, background=True, stored=True, input="[]", request="{}")
    task = replace(new_task(world.owner), response=response)
    await submit(world.database, task)
    await cancel(world.database, world.owner.tenant_id, task.id)
    return response.id


async def _secret(world: World) -> str:
    made = await create_secret(world.database, world.owner.tenant_id, pepper=PEPPER, overlap_s=60.0)
    return made[0]


async def _disabled(world: World) -> str:
    disabled_id = new_id("whd")
    async with world.database.begin() as connection:
        await webhooks.disable(
            connection, disabled_id, world.owner.tenant_id, f"https://a.test/{disabled_id}"
        )
    return disabled_id


async def _file(world: World) -> str:
    upload = {"file": ("lines.jsonl", b"{}\n")}
    return str((await world.call("POST", "/v1/files", files=upload, data={"purpose": "batch"}))["id"])


async def _batch(world: World) -> str:
    body = {
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "input_file_id": await _file(world),
    }
    return str((await world.call("POST", "/v1/batches", json=body))["id"])


async def _key(world: World) -> str:
    name = secrets.token_hex(4)
    key, _ = await add_key(
        world.database, OPERATOR, PEPPER, tenant="owner", name=name, scopes=[Scope.READ], expires_at=None
    )
    return key.id


async def _limit(world: World) -> str:
    rates = {
        "requests_per_minute": 100_000,
        "tokens_per_minute": None,
        "burst_requests": None,
        "burst_tokens": None,
    }
    stored = await put_limit(world.database, OPERATOR, tenant="owner", key=None, model=None, rates=rates)
    return stored.id


async def _tariff(world: World) -> str:
    prices = {"prompt_usd_micros": 1, "cached_usd_micros": 1, "output_usd_micros": 1}
    added = await add_tariff(world.database, OPERATOR, MODEL, prices, valid_from=None, valid_until=None)
    return added.id


async def _budget(world: World) -> str:
    terms = {"soft_usd_micros": None, "hard_usd_micros": 10**9, "webhook": None}
    stored = await put_budget(world.database, OPERATOR, tenant="owner", key=None, period="month", terms=terms)
    return stored.id


async def _model(_: World) -> str:
    return MODEL


async def _tenant(_: World) -> str:
    return "other"


# path parameter → how to make one that belongs to tenant `owner`
SEEDS: dict[str, Callable[[World], Awaitable[str]]] = {
    "task_id": _task,
    "response_id": _response,
    "secret_id": _secret,
    "disabled_id": _disabled,
    "file_id": _file,
    "batch_id": _batch,
    "limit_id": _limit,
    "tariff_id": _tariff,
    "budget_id": _budget,
    "model": _model,
    "key": _key,
    "tenant": _tenant,
}
