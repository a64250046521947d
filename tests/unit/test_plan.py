"""What `headrace apply` would do, from a file and what is there."""

from typing import Any

import pytest

from cli.plan import plan
from cli.plan_steps import Current, Step
from schemas.errors import RequestError
from schemas.platform import Platform
from schemas.requests import validate

NOTHING = Current()
PRICE = {"prompt_usd_micros": 50_000, "output_usd_micros": 200_000}
FILE: dict[str, Any] = {
    "models": [{"name": "org/model", "path": "/models/org/model", "tariffs": [PRICE]}],
    "tenants": [
        {
            "name": "acme",
            "retention_s": 3600,
            "grants": [{"model": "org/model", "max_open_tasks": 10, "priorities": ["batch", "standard"]}],
            "keys": [{"name": "jobs", "scopes": ["submit"]}],
            "limits": [{"requests_per_minute": 60}],
            "budgets": [{"key": "jobs", "hard_usd_micros": 5_000_000}],
        }
    ],
}
THERE = Current(
    models={
        "org/model": {
            "path": "/models/org/model",
            "max_model_len": 4096,
            "version": None,
            "default_max_tokens": None,
            "short_tokens": 512,
            "medium_tokens": 2048,
            "tool_parser": None,
            "reasoning_parser": None,
            "probe_prompt": None,
            "probe_words": [],
            "sync_start_s": None,
            "sync_finish_s": None,
            "sync_stream_s": None,
        }
    },
    tenants={
        "acme": {
            "disabled_at": None,
            "retention_s": 3600.0,
            "store": True,
            "class": "default",
            "weight": 1.0,
            "max_queued_tasks": None,
            "max_queued_tokens": None,
            "max_running_tasks": None,
        }
    },
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
    tariffs={
        ("org/model", None, None): {
            **PRICE,
            "cached_usd_micros": 50_000,
            "engine_usd_micros": 0,
            "engine_us_per_token": 10_000,
        }
    },
    limits={
        ("acme", None, None): {
            "id": "limit_1",
            "requests_per_minute": 60,
            "tokens_per_minute": None,
            "burst_requests": None,
            "burst_tokens": None,
        }
    },
    budgets={
        ("acme", "jobs", "month"): {
            "id": "budget_1",
            "soft_usd_micros": None,
            "hard_usd_micros": 5_000_000,
            "webhook": None,
            "spent_usd_micros": 7,
        }
    },
)


def planned(parsed: dict[str, Any], current: Current = THERE, *, prune: bool = False) -> list[Step]:
    return plan(validate(Platform, parsed), current, prune=prune)


def steps(parsed: dict[str, Any], current: Current = THERE, *, prune: bool = False) -> list[str]:
    return [str(step) for step in planned(parsed, current, prune=prune)]


def test_an_empty_deployment_is_made_in_an_order_that_works() -> None:
    assert steps(FILE, NOTHING) == [
        "+ model org/model",
        "+ tariff org/model (prompt_usd_micros: None → 50000; cached_usd_micros: None → 50000; "
        "output_usd_micros: None → 200000; engine_usd_micros: None → 0; engine_us_per_token: None → 10000)",
        "+ tenant acme",
        "+ grant acme/org/model (max_open_tasks: None → 10; priorities: None → standard, batch)",
        "+ key acme/jobs",
        "+ limit acme (requests_per_minute: None → 60)",
        "+ budget acme key=jobs period=month (hard_usd_micros: None → 5000000)",
    ]


def test_what_belongs_to_a_key_waits_for_its_id_and_the_rest_is_said() -> None:
    by_path = {step.path: step for step in planned(FILE, NOTHING)}
    assert by_path["/keys"].makes_key == by_path["/budgets"].of_key == ("acme", "jobs")
    assert by_path["/budgets"].body == {
        "tenant": "acme",
        "period": "month",
        "soft_usd_micros": None,
        "hard_usd_micros": 5_000_000,
        "webhook": None,
    }
    assert (by_path["/limits"].of_key, by_path["/limits"].body) == (
        None,
        {
            "tenant": "acme",
            "requests_per_minute": 60,
            "tokens_per_minute": None,
            "burst_requests": None,
            "burst_tokens": None,
        },
    )
    assert by_path["/tariffs"].body == {
        **PRICE,
        "model": "org/model",
        "version": None,
        "priority": None,
        "cached_usd_micros": 50_000,
        "engine_usd_micros": 0,
        "engine_us_per_token": 10_000,
    }


def test_what_is_as_the_file_says_needs_no_step() -> None:
    assert steps(FILE) == []
    assert steps(FILE, prune=True) == []
    assert steps({}) == []


def tenant(**change: Any) -> dict[str, Any]:
    return {"tenants": [{**FILE["tenants"][0], **change}]}


def model(**change: Any) -> dict[str, Any]:
    return {"models": [{**FILE["models"][0], **change}]}


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
        (
            tenant(weight=2, max_running_tasks=4),
            ["~ tenant acme (weight: 1.0 → 2.0; max_running_tasks: None → 4)"],
        ),
        (
            model(sync_start_s=20),
            ["~ model org/model (sync_start_s: None → 20.0)"],
        ),
        (
            model(tariffs=[{**PRICE, "cached_usd_micros": 5}, {**PRICE, "priority": "batch"}]),
            [
                "~ tariff org/model (cached_usd_micros: 50000 → 5)",
                "+ tariff org/model priority=batch (prompt_usd_micros: None → 50000; cached_usd_micros: "
                "None → 50000; output_usd_micros: None → 200000; engine_usd_micros: None → 0; "
                "engine_us_per_token: None → 10000)",
            ],
        ),
        (
            model(version="2.1", tariffs=[PRICE, {**PRICE, "version": "2.1", "cached_usd_micros": 0}]),
            [
                "~ model org/model (version: None → 2.1)",
                "+ tariff org/model version=2.1 (prompt_usd_micros: None → 50000; cached_usd_micros: "
                "None → 0; output_usd_micros: None → 200000; engine_usd_micros: None → 0; "
                "engine_us_per_token: None → 10000)",
            ],
        ),
        (
            tenant(limits=[{"tokens_per_minute": 9}, {"model": "org/model", "requests_per_minute": 1}]),
            [
                "~ limit acme (requests_per_minute: 60 → None; tokens_per_minute: None → 9)",
                "+ limit acme model=org/model (requests_per_minute: None → 1)",
            ],
        ),
        (
            tenant(
                budgets=[{"key": "jobs", "soft_usd_micros": 1}, {"period": "total", "hard_usd_micros": 2}]
            ),
            [
                "~ budget acme key=jobs period=month (soft_usd_micros: None → 1; hard_usd_micros: 5000000 → None)",
                "+ budget acme period=total (hard_usd_micros: None → 2)",
            ],
        ),
    ],
)
def test_what_differs_is_changed_and_shown(parsed: dict[str, Any], expected: list[str]) -> None:
    assert steps(parsed) == expected


def test_only_pruning_takes_away_and_only_from_tenants_in_the_file() -> None:
    bare = tenant(grants=[], keys=[], limits=[], budgets=[])
    assert steps(bare) == []
    assert steps(bare, prune=True) == [
        "- limit acme",
        "- budget acme key=jobs period=month",
        "- grant acme/org/model",
        "- key acme/jobs",
    ]
    assert steps(model(tariffs=[]), prune=True) == []  # a model without a price would be free
    assert steps({"tenants": [{"name": "other"}]}, prune=True) == ["+ tenant other"]


@pytest.mark.parametrize(
    ("parsed", "param"),
    [
        ({"tenant": []}, "tenant"),
        ({"tenants": [{"name": "a b"}]}, "tenants[0].name"),
        ({"tenants": [{"name": "a"}, {"name": "a"}]}, "tenants"),
        (tenant(grants=[{"model": "m", "max_open_tasks": 0}]), "tenants[0].grants[0].max_open_tasks"),
        (tenant(keys=[{"name": "k", "scopes": ["root"]}]), "tenants[0].keys[0].scopes"),
        (tenant(weight=0), "tenants[0].weight"),
        (tenant(limits=[{"key": "other", "requests_per_minute": 1}]), "tenants[0].limits"),
        (tenant(budgets=[{"key": "other", "hard_usd_micros": 1}]), "tenants[0].budgets"),
        (tenant(budgets=[{"hard_usd_micros": 1}] * 2), "tenants[0].budgets"),
        (tenant(limits=[{"requests_per_minute": 0}]), "tenants[0].limits[0].requests_per_minute"),
        (tenant(limits=[{}]), "tenants[0].limits[0].requests_per_minute"),
        (model(tariffs=[PRICE, PRICE]), "models[0].tariffs"),
        (model(tariffs=[{"prompt_usd_micros": 1}]), "models[0].tariffs[0].output_usd_micros"),
        (model(tariffs=[{**PRICE, "valid_from": 1}]), "models[0].tariffs[0].valid_from"),
        (model(sync_finish_s=0), "models[0].sync_finish_s"),
        (model(version="two one"), "models[0].version"),
    ],
)
def test_a_file_that_is_no_good_is_refused_by_the_fields_name(parsed: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        validate(Platform, parsed)
    assert refused.value.param is not None and refused.value.param.startswith(param)
