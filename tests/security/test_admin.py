"""Administrators' changes: what is refused, and what the audit log says of the others."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from core.failures import Failure
from core.lanes import LengthBounds
from core.pricing import FREE
from core.states import TaskState
from services.cancel import give_up
from services.register import register_model
from storage import tasks
from tests.security.seeds import World
from tests.support.seeds import MODEL, seed_task
from workers.deterministic_output import make_model

pytestmark = pytest.mark.usefixtures("http")  # `world.http`


async def call(world: World, method: str, path: str, body: object = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {world.keys['admin']}", "X-Request-Id": "of-this-test"}
    return await world.http.request(method, f"/v1/admin{path}", headers=headers, json=body)


async def entries(world: World, object_id: str) -> list[dict[str, Any]]:
    found = (await call(world, "GET", f"/audit?order=asc&object_id={object_id}")).json()["data"]
    return list(found)


async def test_every_change_leaves_who_what_before_and_after(world: World) -> None:
    made = (await call(world, "POST", "/tenants", {"name": "audited"})).json()
    await call(world, "PATCH", "/tenants/audited", {"retention_s": 3600})
    await call(world, "PATCH", "/tenants/audited", {"retention_s": 3600})  # changes nothing
    created, changed = await entries(world, made["id"])
    assert (created["action"], created["before"], created["after"]["name"]) == (
        "tenant.create",
        None,
        "audited",
    )
    assert (changed["before"]["retention_s"], changed["after"]["retention_s"]) == (None, 3600.0)
    assert changed["actor"].startswith(world.keys["admin"][:15])
    assert changed["request_id"] == "of-this-test"


async def test_a_tenants_share_and_bounds_are_set_read_back_and_audited(world: World) -> None:
    bounds = {"weight": 2.5, "max_queued_tasks": 10, "max_queued_tokens": 10**10, "max_running_tasks": 3}
    made = (await call(world, "POST", "/tenants", {"name": "bounded", **bounds})).json()
    assert {name: made[name] for name in bounds} == bounds
    unbounded = {
        "weight": 1.0,
        "max_queued_tasks": None,
        "max_queued_tokens": None,
        "max_running_tasks": None,
    }
    changed = (await call(world, "PATCH", "/tenants/bounded", unbounded)).json()
    assert changed == {**made, **unbounded}
    assert (await call(world, "PATCH", "/tenants/bounded", {"max_running_tasks": 1})).json() == {
        **changed,
        "max_running_tasks": 1,
    }
    assert (await call(world, "GET", "/tenants/bounded")).json()["max_running_tasks"] == 1
    _, first, second = await entries(world, made["id"])
    assert (first["before"]["weight"], first["after"]["weight"]) == (2.5, 1.0)
    assert (second["before"]["max_running_tasks"], second["after"]["max_running_tasks"]) == (None, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("weight", value) for value in (0, -1, 1001, "2", None)),
        *(("max_running_tasks", value) for value in (0, 1.5, 2**31, True)),
        *(("max_queued_tasks", value) for value in (0, "3")),
        *(("max_queued_tokens", value) for value in (0, 2**63)),
    ],
)
async def test_a_share_or_bound_that_makes_no_sense_is_refused(
    world: World, field: str, value: object
) -> None:
    for method, path, more in (("PATCH", "/tenants/owner", {}), ("POST", "/tenants", {"name": "senseless"})):
        answer = await call(world, method, path, {**more, field: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert (await call(world, "GET", "/tenants/senseless")).status_code == 404


async def test_a_models_limits_of_synchronous_calls_are_set_audited_and_kept_by_a_registration(
    world: World, tmp_path: Path
) -> None:
    make_model(tmp_path)
    limits = {"sync_start_s": 20.0, "sync_finish_s": 120.0, "sync_stream_s": 600.0}
    path = "/models/timed/model"
    made = (await call(world, "PUT", path, {"path": str(tmp_path), "version": "2.1+fp8", **limits})).json()
    assert {name: made[name] for name in limits} == limits
    assert made["version"] == "2.1+fp8"
    owner = {
        "path": str(tmp_path),
        "max_model_len": 128,
        "default_max_tokens": None,
        "bounds": LengthBounds(),
    }
    await register_model(world.database, name="timed/model", tenant="owner", tariff=FREE, **owner)
    kept = (await call(world, "GET", path)).json()
    assert {name: kept[name] for name in limits} == limits
    # as everything else in this body: what is left out is none
    cleared = (await call(world, "PUT", path, {"path": str(tmp_path), "sync_start_s": 1})).json()
    assert [cleared[name] for name in limits] == [1.0, None, None]
    assert (await call(world, "DELETE", path)).is_success
    last = (await entries(world, "timed/model"))[-2]
    assert (last["before"]["sync_stream_s"], last["after"]["sync_stream_s"]) == (600.0, None)


async def test_prices_in_force_are_told_from_those_that_were(world: World) -> None:
    body = {"model": MODEL, "priority": "batch", "prompt_usd_micros": 1, "output_usd_micros": 1}
    first = (await call(world, "POST", "/tariffs", body)).json()
    second = (await call(world, "POST", "/tariffs", {**body, "output_usd_micros": 2})).json()
    ends = {**body, "priority": "standard", "valid_from": 2**32, "valid_until": 2**32 + 1}
    future = (await call(world, "POST", "/tariffs", ends)).json()

    async def listed(query: str) -> set[str]:
        found = (await call(world, "GET", f"/tariffs?limit=100&model={MODEL}{query}")).json()["data"]
        return {one["id"] for one in found}

    assert {first["id"], second["id"], future["id"]} <= await listed("")
    in_force = await listed("&in_force=true")
    assert second["id"] in in_force
    assert not {first["id"], future["id"]} & in_force
    await call(world, "POST", f"/tariffs/{second['id']}/end")
    assert first["id"] in await listed("&in_force=true")


async def test_what_is_refused_leaves_no_entry(world: World) -> None:
    made = (await call(world, "POST", "/tenants", {"name": "once"})).json()
    again = await call(world, "POST", "/tenants", {"name": "once"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "tenant_exists")
    assert again.headers["x-should-retry"] == "false"
    assert len(await entries(world, made["id"])) == 1


@pytest.mark.parametrize(
    "statement",
    ["UPDATE audit_entries SET actor = 'x'", "DELETE FROM audit_entries", "TRUNCATE audit_entries"],
)
async def test_the_audit_log_can_only_be_added_to(world: World, statement: str) -> None:
    with pytest.raises(DBAPIError, match="append-only"):
        async with world.database.begin() as connection:
            await connection.execute(sa.text(statement))


async def test_administrators_cannot_lock_themselves_out(world: World) -> None:
    refused = await call(world, "PATCH", "/tenants/owner", {"disabled": True})  # the admin key's own tenant
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "own_tenant")


async def test_a_disabled_tenant_comes_back(world: World, http: httpx.AsyncClient) -> None:
    assert (await call(world, "PATCH", "/tenants/disabled", {"disabled": False})).json()[
        "disabled_at"
    ] is None
    assert (await call(world, "PATCH", "/tenants/disabled", {"disabled": True})).json()["disabled_at"]


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/tenants/nobody", None, "tenant_not_found"),
        ("GET", "/keys/key_0", None, "key_not_found"),
        ("GET", "/keys?tenant=nobody", None, "tenant_not_found"),
        ("POST", "/keys", {"tenant": "nobody", "name": "x"}, "tenant_not_found"),
        ("PUT", "/tenants/owner/grants/no/model", {}, "model_not_found"),
        ("PUT", "/tenants/nobody/grants/org/model", {}, "tenant_not_found"),
        ("DELETE", "/tenants/owner/grants/no/model", None, "grant_not_found"),
        ("DELETE", "/models/no/model", None, "model_not_found"),
        ("POST", "/tasks/task_0/retry", None, "task_not_found"),
    ],
)
async def test_what_does_not_exist_is_said_to_be_missing(
    world: World, method: str, path: str, body: object, code: str
) -> None:
    answer = await call(world, method, path, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tenants/owner/grants/org/model", {"max_prompt_tokens": 0}, "max_prompt_tokens"),
        ("/tenants/owner/grants/org/model", {"max_open_tasks": "3"}, "max_open_tasks"),
        ("/tenants/owner/grants/org/model", {"priorities": []}, "priorities"),
        ("/tenants/owner/grants/org/model", {"priorities": ["urgent"]}, "priorities[0]"),
        ("/tenants/owner/grants/org/model", {"endpoints": ["/v1/nothing"]}, "endpoints[0]"),
        ("/tenants/owner/grants/org/model", {"tokens": 1}, "tokens"),
        ("/models/x", {"path": "/nowhere"}, "path"),
        ("/models/x", {"path": "relative"}, "path"),
        ("/models/x", {}, "path"),
        ("/models/x", {"path": "/m", "version": ""}, "version"),
        ("/models/x", {"path": "/m", "sync_start_s": 0}, "sync_start_s"),
        ("/models/x", {"path": "/m", "sync_finish_s": 1e9}, "sync_finish_s"),
        ("/models/x", {"path": "/m", "sync_stream_s": "60"}, "sync_stream_s"),
    ],
)
async def test_a_bad_field_is_named(world: World, path: str, body: object, param: str) -> None:
    answer = await call(world, "PUT", path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_grants_limits_are_replaced_as_a_whole_and_read_back(world: World) -> None:
    path = f"/tenants/owner/grants/{MODEL}"
    limits = {
        "max_prompt_tokens": 5,
        "priorities": ["batch", "standard"],
        "endpoints": ["/v1/chat/completions"],
    }
    put = (await call(world, "PUT", path, limits)).json()
    assert put["priorities"] == ["standard", "batch"]  # in order of service
    listed = (await call(world, "GET", "/grants?tenant=owner")).json()["data"]
    assert listed == [put]
    cleared = (await call(world, "PUT", path, {})).json()
    assert (cleared["max_prompt_tokens"], cleared["priorities"]) == (None, None)


async def test_lists_are_read_page_by_page_without_gap_or_repeat(world: World) -> None:
    names = [f"page-{number}" for number in range(5)]
    for name in names:
        await call(world, "POST", "/tenants", {"name": name})
    found: list[str] = []
    after = ""
    while True:
        page = (await call(world, "GET", f"/tenants?limit=2&order=asc{after}")).json()
        found += [one["name"] for one in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert [name for name in found if name.startswith("page-")] == names
    assert len(found) == len(set(found))


async def test_any_tenants_dead_task_is_listed_and_done_again(world: World) -> None:
    task = await seed_task(world.database, world.owner)
    assert await give_up(world.database, task.id, Failure.WORKER_LOST)
    dead = (await call(world, "GET", "/tasks?dead=true&tenant=owner")).json()["data"]
    assert [one["id"] for one in dead] == [task.id]
    assert (dead[0]["tenant_id"], dead[0]["response"], dead[0]["metadata"]) == (
        world.owner.tenant_id,
        None,
        None,
    )
    again = await call(world, "POST", f"/tasks/{task.id}/retry")
    assert (again.status_code, again.json()["retry_of"]) == (202, task.id)
    (entry,) = await entries(world, task.id)
    assert (entry["action"], entry["after"]) == ("task.retry", {"retried_as": again.json()["id"]})
    async with world.database.connect() as connection:
        stored = await tasks.get_task(connection, world.owner.tenant_id, again.json()["id"])
        assert stored is not None and stored.state is TaskState.QUEUED


async def test_a_model_is_not_taken_out_of_service_under_its_tasks(world: World) -> None:
    refused = await call(world, "DELETE", f"/models/{MODEL}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model_in_use")
