"""Administrators' changes: what is refused, and what the audit log says of the others."""

from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from core.failures import Failure
from core.states import TaskState
from services.cancel import give_up
from storage import tasks
from tests.security.seeds import World
from tests.support.seeds import MODEL, seed_task

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
