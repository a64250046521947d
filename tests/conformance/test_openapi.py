"""The OpenAPI document, and requests made up from it."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis
import jsonschema
import pytest
import schemathesis

from core.scopes import Scope
from services.register import create_key
from tests.chaos.lab import DEFAULTS, Lab
from tests.support.seeds import opened
from tests.support.stacks import SharedStack

EXAMPLES = 12  # a route; the long form makes up more
_SLOW = ("/docs", "/redoc")  # pages for people


def references(node: Any) -> Iterator[str]:
    """Every `$ref` in a document."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


@pytest.mark.shows("openapi-refers")
def test_every_reference_leads_to_a_schema(deterministic_stack: SharedStack) -> None:
    document = httpx.get(f"{deterministic_stack.api_url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    for reference in set(references(document)):
        assert reference.removeprefix("#/components/schemas/") in schemas, reference
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def likely(body: Any, model: str) -> Any:
    """A made-up body made likely to get past its model, and short where it says nothing else."""
    if not isinstance(body, dict):
        return body
    if "model" in body:
        body = {"max_tokens": 2} | body | {"model": model}
    if isinstance(body.get("body"), dict):
        body = body | {"body": likely({"model": "", **body["body"]}, model)}
    return body


@pytest.mark.shows("openapi-no-5xx")
@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(EXAMPLES * 10, marks=pytest.mark.full)])
async def test_nothing_that_is_described_is_answered_with_a_5xx(lab: Lab, examples: int) -> None:
    lab.settings |= {"HEADRACE_DETERMINISTIC_STEP_S": "0", "HEADRACE_SYNC_START_S": "30"}
    await asyncio.gather(lab.start_api(), lab.start_control(), lab.start_worker("w1"))
    answers = await asyncio.to_thread(ask_all, lab, await all_powerful_key(lab), examples)
    assert {status for status, _ in answers} >= {200, 400, 404}, answers
    assert [answer for answer in answers if answer[0] >= 500] == []


async def all_powerful_key(lab: Lab) -> str:
    """A key for every route."""
    async with opened(lab.postgres.url) as database:
        pepper = DEFAULTS["HEADRACE_KEY_PEPPER"].encode()
        return await create_key(database, tenant="default", name="all", pepper=pepper, scopes=list(Scope))


def ask_all(lab: Lab, key: str, examples: int) -> Counter[tuple[int, str]]:
    """Ask every operation; return how often each answered with which status."""
    schema: Any = schemathesis.openapi.from_url(f"{lab.api_url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    operations = [one for one in operations if one.path not in _SLOW]
    # what may shut the key itself out comes last
    operations.sort(key=lambda one: one.path.startswith("/v1/admin"))
    answers: Counter[tuple[int, str]] = Counter()
    for operation in operations:

        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            if isinstance(case.body, dict) and case.media_type == "application/json":
                case.body = likely(case.body, lab.model)
            answer = case.call(headers={"Authorization": f"Bearer {key}"}, timeout=60)
            answers[answer.status_code, f"{case.method} {case.operation.path}"] += 1
            assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.status_code} {answer.text}"

        ask()
    return answers
