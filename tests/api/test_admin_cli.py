"""`headrace admin` and `headrace apply` on a running stack."""

import asyncio
import json
import secrets
import stat
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.stacks import ROOT
from tests.support.stacks import SharedStack as Stack
from workers.deterministic_output import make_model


async def headrace(stack: Stack, *words: str, code: int = 0) -> str:
    """Run a command as a user would; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cli",
        *words,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), timeout=60)
    assert process.returncode == code, out.decode()
    return out.decode()


async def admin(stack: Stack, *words: str, code: int = 0) -> Any:
    printed = await headrace(stack, "admin", "--json", "--data", str(stack.data), *words, code=code)
    return [json.loads(line) for line in printed.splitlines()] if code == 0 else printed


def model_folder(folder: Path) -> Path:
    """A folder that can be registered."""
    make_model(folder)
    return folder


@pytest.fixture
def tenant() -> str:
    """The name of a tenant that nobody else uses."""
    return f"cli-{secrets.token_hex(4)}"


async def test_a_tenant_is_set_up_uses_its_model_and_is_disabled(
    stack: Stack, tenant: str, tmp_path: Path
) -> None:
    await admin(stack, "tenant", "create", tenant, "--retention-hours", "2")
    await admin(stack, "grant", "put", tenant, stack.model, "--max-output-tokens", "4")
    file = tmp_path / "key"
    told = await headrace(
        stack,
        "admin",
        "--data",
        str(stack.data),
        "key",
        "create",
        "--tenant",
        tenant,
        "--name",
        "k",
        "--out",
        str(file),
    )
    key = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key[15:] not in told
    async with httpx.AsyncClient(
        base_url=stack.api_url, headers={"Authorization": f"Bearer {key}"}, timeout=30
    ) as http:
        chat = {"model": stack.model, "messages": [{"role": "user", "content": "hello"}]}
        answer = await http.post("/v1/chat/completions", json=chat)
        assert answer.json()["usage"]["completion_tokens"] == 4  # the grant's limit is the default too
        refused = await http.post("/v1/chat/completions", json={**chat, "max_tokens": 5})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
        assert "at most 4" in refused.json()["error"]["message"]
        await admin(stack, "tenant", "disable", tenant)

        async def disabled() -> bool:
            return (await http.get("/v1/models")).status_code == 403

        for _ in range(100):
            if await disabled():
                break
            await asyncio.sleep(0.05)
        assert await disabled()
    actions = [entry["action"] for entry in await admin(stack, "audit", "--tenant", tenant)]
    assert actions == ["tenant.change", "key.create", "grant.put", "tenant.create"]


@pytest.mark.parametrize(
    ("limits", "asked", "status", "code"),
    [
        ({"priorities": ["batch"]}, {}, 403, "priority_not_granted"),
        ({"endpoints": ["/v1/completions"]}, {}, 403, "endpoint_not_granted"),
        ({"max_prompt_tokens": 1}, {}, 400, "prompt_limit_exceeded"),
        ({"max_output_tokens": 3}, {"max_tokens": 4}, 400, "output_limit_exceeded"),
    ],
)
async def test_a_grants_limit_holds_for_chat_and_tasks_alike(
    stack: Stack, tenant: str, limits: dict[str, Any], asked: dict[str, Any], status: int, code: str
) -> None:
    body = {"model": stack.model, "messages": [{"role": "user", "content": "hello"}], **asked}
    async with httpx.AsyncClient(base_url=stack.api_url, timeout=30) as http:
        as_admin = {"Authorization": f"Bearer {stack.run.admin_key}"}

        async def change(method: str, path: str, what: object) -> Any:
            answer = await http.request(method, f"/v1/admin{path}", json=what, headers=as_admin)
            assert answer.is_success, answer.text
            return answer.json()

        await change("POST", "/tenants", {"name": tenant})
        await change("PUT", f"/tenants/{tenant}/grants/{stack.model}", limits)
        made = await change("POST", "/keys", {"tenant": tenant, "name": "k"})
        headers = {"Authorization": f"Bearer {made['key']}"}
        for path, sent in (
            ("/v1/chat/completions", body),
            ("/v1/tasks", {"url": "/v1/chat/completions", "body": body}),
        ):
            answer = await http.post(path, json=sent, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_a_file_is_applied_once_and_shows_what_differs(
    stack: Stack, tenant: str, tmp_path: Path
) -> None:
    file, keys = tmp_path / "platform.yaml", tmp_path / "keys"
    file.write_text(
        f"tenants:\n- name: {tenant}\n  retention_s: 3600\n"
        f"  grants: [{{model: {stack.model}, max_open_tasks: 5}}]\n"
        "  keys: [{name: jobs, scopes: [submit, read]}]\n"
    )
    options = ("--file", str(file), "--keys-dir", str(keys), "--data", str(stack.data))
    assert "3 changes would be made" in await headrace(stack, "apply", *options, "--dry-run", code=2)
    assert not keys.exists()
    shown = await headrace(stack, "apply", *options)
    assert f"+ tenant {tenant}" in shown and "3 changes made" in shown
    key_file = keys / f"{tenant}.jobs"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    key = key_file.read_text().strip()
    assert key[15:] not in shown
    async with httpx.AsyncClient(base_url=stack.api_url, headers={"Authorization": f"Bearer {key}"}) as http:
        listed = (await http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == [stack.model]
    assert "nothing to change" in await headrace(stack, "apply", *options)
    file.write_text(f"tenants:\n- name: {tenant}\n")
    assert "- key" in await headrace(stack, "apply", *options, "--prune")
    assert key_file.read_text().strip() == key  # files are the operator's


async def test_a_file_sets_prices_rates_and_budgets_once(stack: Stack, tenant: str, tmp_path: Path) -> None:
    file, keys = tmp_path / "platform.yaml", tmp_path / "keys"
    name = f"priced/{tenant}"

    def write(output: int, more: str = "") -> None:
        file.write_text(f"""
models:
- name: {name}
  path: {model_folder(tmp_path)}
  sync_start_s: 30
  tariffs:
  - prompt_usd_micros: 50000
    output_usd_micros: {output}
  - priority: batch
    prompt_usd_micros: 25000
    output_usd_micros: 100000
tenants:
- name: {tenant}
  weight: 2
  max_running_tasks: 4
  keys: [{{name: jobs}}]
{more}""")

    write(
        200000,
        f"""
  limits:
  - requests_per_minute: 600
  - {{key: jobs, tokens_per_minute: 100000}}
  - {{model: {name}, requests_per_minute: 60, burst_requests: 10}}
  budgets:
  - {{soft_usd_micros: 8000000, hard_usd_micros: 10000000}}
  - {{key: jobs, period: total, hard_usd_micros: 5000000}}
""",
    )
    options = ("--file", str(file), "--keys-dir", str(keys), "--data", str(stack.data))
    planned = await headrace(stack, "apply", *options, "--dry-run", code=2)
    made = await headrace(stack, "apply", *options)
    assert made.splitlines()[:-1] == planned.splitlines()[:-1]
    assert "10 changes made" in made
    assert "nothing to change" in await headrace(stack, "apply", *options)
    (key,) = await admin(stack, "key", "list", "--tenant", tenant)
    limits = await admin(stack, "limit", "list", "--tenant", tenant)
    found = {(one["key_id"], one["model"]): one["requests_per_minute"] for one in limits}
    assert found == {(None, None): 600, (key["id"], None): None, (None, name): 60}
    budgets = await admin(stack, "budget", "list", "--tenant", tenant)
    assert {(one["key_id"], one["period"]): one["hard_usd_micros"] for one in budgets} == {
        (None, "month"): 10_000_000,
        (key["id"], "total"): 5_000_000,
    }
    write(300000)
    changed = await headrace(stack, "apply", *options, "--prune")
    assert changed.splitlines()[0] == f"~ tariff {name} (output_usd_micros: 200000 → 300000)"
    assert "6 changes made" in changed
    assert "nothing to change" in await headrace(stack, "apply", *options, "--prune")
    prices = await admin(stack, "tariff", "list", "--model", name, "--in-force")
    assert {(one["priority"], one["output_usd_micros"]) for one in prices} == {
        (None, 300000),
        ("batch", 100000),
    }
    assert len(await admin(stack, "tariff", "list", "--model", name)) == 3
    assert await admin(stack, "limit", "list", "--tenant", tenant) == []
    assert await admin(stack, "budget", "list", "--tenant", tenant) == []
    await admin(stack, "model", "delete", name)


async def test_a_tenants_share_and_bounds_and_a_models_times_are_set(
    stack: Stack, tenant: str, tmp_path: Path
) -> None:
    options = ("--weight", "2", "--max-running-tasks", "3", "--max-queued-tasks", "50")
    (made,) = await admin(stack, "tenant", "create", tenant, *options)
    assert (made["weight"], made["max_running_tasks"], made["max_queued_tasks"]) == (2.0, 3, 50)
    (changed,) = await admin(
        stack, "tenant", "change", tenant, "--max-running-tasks", "0", "--max-queued-tokens", "9000"
    )
    assert changed == {**made, "max_running_tasks": None, "max_queued_tokens": 9000}
    path = ("--path", str(model_folder(tmp_path)))
    times = ("--sync-start", "9", "--sync-finish", "90", "--sync-stream", "900")
    (model,) = await admin(stack, "model", "put", f"timed/{tenant}", *path, *times)
    assert [model[f"sync_{what}_s"] for what in ("start", "finish", "stream")] == [9.0, 90.0, 900.0]
    await admin(stack, "model", "delete", f"timed/{tenant}")


async def test_what_goes_wrong_is_one_line_that_says_so(stack: Stack, tmp_path: Path) -> None:
    assert "tenant_not_found" in await admin(
        stack, "key", "create", "--tenant", "nobody", "--name", "x", code=1
    )
    told = await headrace(stack, "admin", "--api", stack.api_url, "tenant", "list", code=1)
    assert "needs a key" in told
    bad = tmp_path / "bad.yaml"
    bad.write_text("tenants: [{name: a b}]")
    told = await headrace(stack, "apply", "-f", str(bad), "--data", str(stack.data), code=1)
    assert "tenants[0].name" in told
    lost = tmp_path / "file"
    lost.write_text("")
    told = await admin(
        stack, "key", "create", "--tenant", "default", "--name", "lost", "--out", str(lost / "key"), code=1
    )
    assert "could not be kept" in told
    kept = await admin(stack, "key", "list", "--tenant", "default")
    assert "lost" not in [key["name"] for key in kept]  # no key that nobody has


def test_the_local_stack_has_an_administrators_key_for_its_owner_only(stack: Stack) -> None:
    file = Path(stack.run.admin_key_file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    headers = {"Authorization": f"Bearer {stack.run.admin_key}"}
    assert httpx.get(f"{stack.api_url}/v1/admin/tenants", headers=headers).status_code == 200
    assert (
        httpx.get(f"{stack.api_url}/v1/models", headers=headers).status_code == 403
    )  # no scope implies another
    assert httpx.get(f"{stack.api_url}/v1/admin/tenants", headers=stack.headers).status_code == 403
