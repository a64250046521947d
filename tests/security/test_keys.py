"""API keys: at rest, in force, out of force, and what is told of them."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine

from api.access import AccessCache
from api.app import create_app
from api.aside import Aside
from core import keys
from services.authenticate import authenticate
from tests.security.seeds import World
from tests.support.seeds import PEPPER, opened
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.usefixtures("http")  # `world.http`


@pytest.fixture(scope="module")
async def second(app: FastAPI, world: World) -> AsyncIterator[httpx.AsyncClient]:
    """Another API process's application on the same stores."""
    other = create_app(app.state.headrace.settings)
    async with other.router.lifespan_context(other):
        transport = httpx.ASGITransport(other)
        async with httpx.AsyncClient(transport=transport, base_url="http://second") as client:
            yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def admin(
    world: World, method: str, path: str, body: object = None, status: int = 200
) -> dict[str, object]:
    answer = await world.http.request(
        method, f"/v1/admin{path}", headers=bearer(world.keys["admin"]), json=body
    )
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def new_key(world: World, name: str, **more: object) -> dict[str, object]:
    return await admin(world, "POST", "/keys", {"tenant": "owner", "name": name, **more}, 201)


async def status_of(client: httpx.AsyncClient, key: object) -> int:
    return (await client.get("/v1/models", headers=bearer(str(key)))).status_code


async def test_a_revoked_key_is_refused_by_every_api_process_within_a_second(
    world: World, http: httpx.AsyncClient, second: httpx.AsyncClient
) -> None:
    made = await new_key(world, "to-revoke")
    for client in (http, second):
        assert await status_of(client, made["key"]) == 200  # each process knows it now
    await admin(world, "POST", f"/keys/{made['id']}/revoke")
    revoked = time.monotonic()

    async def accepted_last(client: httpx.AsyncClient) -> float:
        """When the last request that was accepted began: a busy machine may take its time to answer it."""
        last = revoked

        async def refused() -> bool:
            nonlocal last
            began = time.monotonic()
            if await status_of(client, made["key"]) == 401:
                return True
            last = began
            return False

        await eventually_async(refused, 30.0, "the key refused")
        return last

    for last in await asyncio.gather(accepted_last(http), accepted_last(second)):
        assert last - revoked <= 1.0


async def test_a_revoked_grant_makes_the_model_unknown_within_a_second(
    world: World, second: httpx.AsyncClient
) -> None:
    made = await admin(world, "POST", "/keys", {"tenant": "other", "name": "granted"}, 201)
    headers = bearer(str(made["key"]))
    assert (await second.get("/v1/models/org/model", headers=headers)).status_code == 404
    await admin(world, "PUT", "/tenants/other/grants/org/model", {})

    async def seen() -> bool:
        return (await second.get("/v1/models/org/model", headers=headers)).status_code == 200

    await eventually_async(seen, 5.0, "the model granted")
    await admin(world, "DELETE", "/tenants/other/grants/org/model")

    async def gone() -> bool:
        return (await second.get("/v1/models", headers=headers)).json()["data"] == []

    await eventually_async(gone, 5.0, "the model gone")


async def test_a_rotated_key_opens_until_the_overlap_is_over_and_its_successor_after_it(
    world: World, http: httpx.AsyncClient
) -> None:
    old = await new_key(world, "to-rotate", scopes=["read"], expires_in_s=3600)
    new = await admin(world, "POST", f"/keys/{old['prefix']}/rotate", {"overlap_s": 2}, 201)
    assert (new["name"], new["scopes"]) == (old["name"], ["read"])
    assert abs(int(str(new["expires_at"])) - int(str(old["expires_at"]))) <= 5  # the same time to live
    assert await status_of(http, old["key"]) == await status_of(http, new["key"]) == 200
    told = await admin(world, "GET", f"/keys/{old['id']}")
    assert told["replaced_by"] == new["id"]

    async def over() -> bool:
        return await status_of(http, old["key"]) == 401

    await eventually_async(over, 10.0, "the overlap's end")
    assert await status_of(http, new["key"]) == 200
    again = await admin(world, "POST", f"/keys/{old['id']}/rotate", {}, 409)
    assert "error" in again


async def test_a_rotated_key_leaves_its_limits_and_budgets_to_its_successor(world: World) -> None:
    old = await new_key(world, "limited")
    owned = {"tenant": "owner", "key": old["prefix"]}
    limit = await admin(world, "PUT", "/limits", {**owned, "requests_per_minute": 7})
    budget = await admin(world, "PUT", "/budgets", {**owned, "period": "month", "hard_usd_micros": 11})
    new = await admin(world, "POST", f"/keys/{old['prefix']}/rotate", {"overlap_s": 60}, 201)
    newest = await admin(world, "POST", f"/keys/{new['prefix']}/rotate", {"overlap_s": 60}, 201)
    found = [await authenticate(world.database, str(key["key"]), PEPPER) for key in (old, new, newest)]
    accesses = [access for access in found if access is not None]
    assert [access.key_id for access in accesses] == [old["id"], new["id"], newest["id"]]
    assert {access.caller.key_id for access in accesses} == {old["id"]}  # what it submits is charged to one
    for access in accesses:
        assert 7 in [one.requests_per_minute for one in access.limits]
        assert [one.hard_usd_micros for one in access.budgets] == [11]
    changed = {"tenant": "owner", "key": newest["prefix"]}
    again = await admin(world, "PUT", "/limits", {**changed, "requests_per_minute": 8})
    assert again["id"] == limit["id"]
    again = await admin(world, "PUT", "/budgets", {**changed, "period": "month", "hard_usd_micros": 12})
    assert again["id"] == budget["id"]


async def test_of_a_key_nothing_is_stored_or_told_that_it_could_be_made_of(world: World) -> None:
    made = await new_key(world, "at-rest")
    text = str(made["key"])
    secret = text[15:]
    assert len(secret) == 32
    told = [
        await admin(world, "GET", path)
        for path in (f"/keys/{made['id']}", "/keys?limit=100", "/audit?limit=100")
    ]
    assert secret not in str(told)
    async with world.database.connect() as connection:
        tables = await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names())
        for table in tables:
            rows = await connection.execute(sa.text(f'SELECT t::text FROM "{table}" t'))
            assert not [row for (row,) in rows if secret in row], table
        digest = (
            await connection.execute(
                sa.text("SELECT digest FROM api_keys WHERE id = :id"), {"id": made["id"]}
            )
        ).scalar_one()
    assert digest == hmac.digest(PEPPER, text.encode(), "sha256")


async def test_a_key_is_compared_in_constant_time_whether_or_not_anybody_has_it(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    class Compared:
        new, digest, compare_digest = hmac.new, hmac.digest, staticmethod(compare)

    monkeypatch.setattr(keys, "hmac", Compared)
    known = world.keys["read"]
    wrong = known[:-1] + ("a" if known[-1] != "a" else "b")
    for text in (wrong, "hr_" + "b" * 44):
        assert await status_of(http, text) == 401
    assert [len(one) == len(other) == 32 for one, other in compared] == [True, True]


async def test_the_use_of_a_key_is_written_once_a_minute_and_not_by_the_request(
    world: World, http: httpx.AsyncClient, app: FastAPI
) -> None:
    made = await new_key(world, "used")
    uses = app.state.headrace.access.uses
    before = time.time()
    for _ in range(3):
        await status_of(http, made["key"])
    await uses.write()
    first = await admin(world, "GET", f"/keys/{made['id']}")
    assert int(str(first["last_used_at"])) >= int(before)
    assert str(made["id"]) not in uses.waiting
    await status_of(http, made["key"])
    assert str(made["id"]) not in uses.waiting  # not within the minute


def uses_of(database: AsyncEngine) -> Aside:
    """As each API process has it."""
    return AccessCache(database, PEPPER).uses


async def test_two_processes_write_one_use_a_minute_and_a_store_that_is_away_loses_none(world: World) -> None:
    made = await new_key(world, "used-twice")
    one, two = uses_of(world.database), uses_of(world.database)
    async with opened("postgresql://nobody@127.0.0.1:1/none") as away:
        lost = uses_of(away)
        lost.note(str(made["id"]))
        await lost.write()
        assert str(made["id"]) in lost.waiting
    for uses in (one, two):
        uses.note(str(made["id"]))
        await uses.write()
    async with world.database.connect() as connection:
        row = await connection.execute(
            sa.text("SELECT xmin::text, last_used_at FROM api_keys WHERE id = :id"), {"id": made["id"]}
        )
        version, used_at = row.one()
        assert used_at is not None
    two._written.clear()
    two.note(str(made["id"]))
    await two.write()
    async with world.database.connect() as connection:
        row = await connection.execute(
            sa.text("SELECT xmin::text, last_used_at FROM api_keys WHERE id = :id"), {"id": made["id"]}
        )
        assert row.one() == (version, used_at)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tenant": "owner"}, "name"),
        ({"tenant": "owner", "name": ""}, "name"),
        ({"tenant": "owner", "name": "x", "scopes": []}, "scopes"),
        ({"tenant": "owner", "name": "x", "scopes": ["root"]}, "scopes"),
        ({"tenant": "owner", "name": "x", "expires_in_s": 0}, "expires_in_s"),
        ({"tenant": "owner", "name": "x", "digest": "00"}, "digest"),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused_by_the_fields_name(
    world: World, body: object, param: str
) -> None:
    refused = await admin(world, "POST", "/keys", body, 400)
    assert param in str(refused["error"])


async def test_a_key_is_never_named_by_all_of_it(world: World) -> None:
    refused = await admin(world, "POST", f"/keys/{world.keys['read']}/revoke", None, 400)
    assert "15 characters" in str(refused)
    assert await status_of(world.http, world.keys["read"]) == 200


async def test_a_name_is_given_to_one_key_in_force_of_a_tenant(world: World) -> None:
    made = await new_key(world, "twice")
    assert "key_exists" in str(await admin(world, "POST", "/keys", {"tenant": "owner", "name": "twice"}, 409))
    await admin(world, "POST", f"/keys/{made['id']}/revoke")
    assert (await new_key(world, "twice"))["id"] != made["id"]


async def test_scopes_can_be_taken_from_a_key(world: World, http: httpx.AsyncClient) -> None:
    made = await new_key(world, "narrowed")
    assert await status_of(http, made["key"]) == 200
    await admin(world, "PATCH", f"/keys/{made['id']}", {"scopes": ["submit"]})

    async def lacks() -> bool:
        return await status_of(http, made["key"]) == 403

    await eventually_async(lacks, 5.0, "the scope gone")
