"""What `headrace apply` would do, from a file and what is there."""

from typing import Any

import pytest

from cli.plan import Current, plan
from schemas.errors import RequestError
from schemas.platform import Platform
from schemas.requests import validate

NOTHING = Current({}, {}, {}, {})
FILE: dict[str, Any] = {
    "models": [{"name": "org/model", "path": "/models/org/model"}],
    "tenants": [
        {
            "name": "acme",
            "retention_s": 3600,
            "grants": [{"model": "org/model", "max_open_tasks": 10, "priorities": ["batch", "standard"]}],
            "keys": [{"name": "jobs", "scopes": ["submit"]}],
        }
    ],
}
THERE = Current(
    models={
        "org/model": {
            "path": "/models/org/model",
            "max_model_len": 4096,
            "default_max_tokens": None,
            "short_tokens": 512,
            "medium_tokens": 2048,
            "tool_parser": None,
            "reasoning_parser": None,
            "probe_prompt": None,
            "probe_words": [],
        }
    },
    tenants={"acme": {"disabled_at": None, "retention_s": 3600.0, "store": True, "class": "default"}},
    grants={
        ("acme", "org/model"): {
            "max_prompt_tokens": None,
            "max_output_tokens": None,
            "max_open_tasks": 10,
            "priorities": ["standard", "batch"],
            "endpoints": None,
        }
    },
    keys={("acme", "jobs"): {"id": "key_1", "scopes": ["submit"]}},
)


def steps(parsed: dict[str, Any], current: Current = THERE, *, prune: bool = False) -> list[str]:
    return [str(step) for step in plan(validate(Platform, parsed), current, prune=prune)]


def test_an_empty_deployment_is_made_in_an_order_that_works() -> None:
    assert steps(FILE, NOTHING) == [
        "+ model org/model",
        "+ tenant acme",
        "+ grant acme/org/model (max_open_tasks: None → 10; priorities: None → standard, batch)",
        "+ key acme/jobs",
    ]


def test_what_is_as_the_file_says_needs_no_step() -> None:
    assert steps(FILE) == []
    assert steps(FILE, prune=True) == []
    assert steps({}) == []


def tenant(**change: Any) -> dict[str, Any]:
    return {"tenants": [{**FILE["tenants"][0], **change}]}


@pytest.mark.parametrize(
    ("parsed", "expected"),
    [
        (tenant(retention_s=7200), ["~ tenant acme (retention_s: 3600.0 → 7200.0)"]),
        (tenant(disabled=True), ["~ tenant acme (disabled: False → True)"]),
        (
            tenant(grants=[{"model": "org/model"}]),
            ["~ grant acme/org/model (max_open_tasks: 10 → None; priorities: standard, batch → None)"],
        ),
        (tenant(keys=[{"name": "jobs"}]), ["~ key acme/jobs (scopes: submit → read, submit)"]),
        (
            {"models": [{"name": "org/model", "path": "/elsewhere"}]},
            ["~ model org/model (path: /models/org/model → /elsewhere)"],
        ),
    ],
)
def test_what_differs_is_changed_and_shown(parsed: dict[str, Any], expected: list[str]) -> None:
    assert steps(parsed) == expected


def test_only_pruning_takes_away_and_only_from_tenants_in_the_file() -> None:
    bare = tenant(grants=[], keys=[])
    assert steps(bare) == []
    assert steps(bare, prune=True) == ["- grant acme/org/model", "- key acme/jobs"]
    assert steps({"tenants": [{"name": "other"}]}, prune=True) == ["+ tenant other"]


@pytest.mark.parametrize(
    ("parsed", "param"),
    [
        ({"tenant": []}, "tenant"),
        ({"tenants": [{"name": "a b"}]}, "tenants[0].name"),
        ({"tenants": [{"name": "a"}, {"name": "a"}]}, "tenants"),
        (tenant(grants=[{"model": "m", "max_open_tasks": 0}]), "tenants[0].grants[0].max_open_tasks"),
        (tenant(keys=[{"name": "k", "scopes": ["root"]}]), "tenants[0].keys[0].scopes"),
    ],
)
def test_a_file_that_is_no_good_is_refused_by_the_fields_name(parsed: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        validate(Platform, parsed)
    assert refused.value.param is not None and refused.value.param.startswith(param)
