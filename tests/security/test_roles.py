"""Each role against each route. The table and how to add to it: `routes.py`."""

import re
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from core.ids import make_id
from core.scopes import Scope
from tests.security.conftest import Statements
from tests.security.routes import PUBLIC, ROWS, Row
from tests.security.seeds import SEEDS, World

KEYLESS = {
    "no key": "",
    "made up": "Bearer hr_" + "a" * 44,
    "malformed": "Bearer hr_short",
    "basic": "Basic aHI6eA==",
}


def routes_of(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Method and path of every route, HEAD and OPTIONS of GETs left out."""
    for route in app.routes:
        assert isinstance(route, Route), f"{route}: mounted applications have no place in the table"
        for method in (route.methods or set()) - {"HEAD"} or {"HEAD"}:
            yield method, route.path


def test_every_route_has_a_row_and_every_row_a_route(app: FastAPI) -> None:
    assert {(row.method, row.path) for row in ROWS} == set(routes_of(app))


def test_every_path_parameter_can_be_filled() -> None:
    named = {name for row in ROWS for name in _parameters(row)}
    assert named <= set(SEEDS)


def _parameters(row: Row) -> list[str]:
    return re.findall(r"\{(\w+)(?::\w+)?\}", row.path + row.query)


async def _url(row: Row, world: World) -> str:
    url = row.path + (f"?{row.query}" if row.query else "")
    for name in _parameters(row):
        url = re.sub(rf"\{{{name}(:\w+)?\}}", await SEEDS[name](world), url)
    return url


def _id(row: Row) -> str:
    return f"{row.method} {row.path}{'?' if row.query else ''}{row.query}"


@pytest.mark.parametrize("row", ROWS, ids=_id)
async def test_each_role_gets_what_the_table_says(row: Row, http: httpx.AsyncClient, world: World) -> None:
    expected = dict.fromkeys((*KEYLESS, "revoked", "expired"), 401)
    expected |= {f"disabled {scope}": 403 for scope in Scope}
    expected |= {str(scope): row.owner if scope == row.scope else 403 for scope in Scope}
    expected |= {f"other {scope}": row.others if scope == row.scope else 403 for scope in Scope}
    if row.scope is PUBLIC:
        expected = dict.fromkeys(expected, row.owner)
    found = {}
    for role in expected:
        header = KEYLESS[role] if role in KEYLESS else f"Bearer {world.keys[role]}"
        answer = await http.request(
            row.method, await _url(row, world), headers={"Authorization": header} if header else {}
        )
        found[role] = answer.status_code
        if answer.status_code == 403:
            code = answer.json()["error"]["code"]
            assert code == ("tenant_disabled" if role.startswith("disabled") else "insufficient_scope")
    assert found == expected


async def test_what_a_request_asks_the_database_is_counted(
    http: httpx.AsyncClient, world: World, statements: Statements
) -> None:
    headers = {"Authorization": f"Bearer {world.keys['read']}"}
    with statements.counted() as counted:
        await http.get("/v1/tasks", headers=headers)
    assert any("FROM tasks" in statement for statement in counted)


WITH_IDS = [row for row in ROWS if row.others == 404]


@pytest.mark.parametrize("row", WITH_IDS, ids=_id)
async def test_another_tenants_id_is_answered_as_one_that_nobody_has(
    row: Row, http: httpx.AsyncClient, world: World, statements: Statements
) -> None:
    headers = {"Authorization": f"Bearer {world.keys[f'other {row.scope}']}"}
    url = await _url(row, world)
    await http.request(row.method, url, headers=headers)  # from here on the key is known
    answers = []
    for named in (url, _made_up(url)):
        with statements.counted() as counted:
            answer = await http.request(row.method, named, headers=headers)
        body = re.sub(r"\b[a-z]+[_-][0-9a-hjkmnp-tv-z]{26}\b|org/\w+", "ID", answer.text)
        kept = {name for name in answer.headers if name not in ("x-request-id", "content-length")}
        # the same work is the same time: the database is asked the same, as often
        answers.append((answer.status_code, body, kept, list(counted)))
    assert answers[0] == answers[1]


def _made_up(url: str) -> str:
    """The same URL with ids of the same form that were never given."""
    return re.sub(
        r"\b([a-z]+)[_-][0-9a-hjkmnp-tv-z]{26}\b", lambda found: make_id(found[1], 0, bytes(10)), url
    ).replace("org/model", "org/never")
