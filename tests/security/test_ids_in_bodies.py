"""Ids that stand in bodies: another tenant's is as unknown as one that nobody has. Paths: `test_roles.py`."""

import re
from collections.abc import Callable

import httpx
import pytest

from core.ids import make_id
from tests.security.conftest import Statements
from tests.security.seeds import SEEDS, World
from tests.support.seeds import MODEL


def batch_of(file_id: str) -> dict[str, object]:
    return {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def response_after(response_id: str) -> dict[str, object]:
    return {"model": MODEL, "input": "and then?", "previous_response_id": response_id}


@pytest.mark.parametrize(
    ("path", "seed", "body", "param"),
    [
        ("/v1/batches", "file_id", batch_of, "input_file_id"),
        ("/v1/responses", "response_id", response_after, "previous_response_id"),
    ],
)
async def test_another_tenants_id_in_a_body_is_answered_as_one_that_nobody_has(
    http: httpx.AsyncClient,
    world: World,
    statements: Statements,
    path: str,
    seed: str,
    body: Callable[[str], dict[str, object]],
    param: str,
) -> None:
    headers = {"Authorization": f"Bearer {world.keys['other submit']}"}
    theirs = await SEEDS[seed](world)
    never = make_id(theirs.partition("_")[0].partition("-")[0], 0, bytes(10))
    await http.post(path, json={}, headers=headers)  # from here on the key is known
    answers = []
    for named in (theirs, never):
        with statements.counted() as counted:
            answer = await http.post(path, json=body(named), headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (404, param)
        answers.append((re.sub(r"\b[a-z]+[_-][0-9a-z]{26}\b", "ID", answer.text), list(counted)))
    assert answers[0] == answers[1]
