"""`headrace apply`: make models, tenants and what belongs to them what a file says they are."""

import sys
from pathlib import Path

import yaml

from cli.admin.connect import Admin, AdminError, Object, Where
from cli.plan import plan
from cli.plan_steps import Current, Named, Step
from cli.private_file import can_write, write_private
from schemas.errors import RequestError
from schemas.platform import Platform
from schemas.requests import validate

APPLIED, REFUSED, WOULD_CHANGE = 0, 1, 2  # exit codes


def apply(file: Path, where: Where, *, dry_run: bool, prune: bool, keys_dir: Path) -> int:
    """Show what differs, and make it so unless `dry_run`; return the exit code."""
    try:
        wanted = read_platform(file)
        admin = Admin(*where.find())
        try:
            current = _read_current(admin)
            steps = plan(wanted, current, prune=prune)
            keys = {name: str(key["id"]) for name, key in current.keys.items()}
            for step in steps:
                if not dry_run:
                    _do(admin, step, keys_dir, keys)
                print(step)
        finally:
            admin.close()
    except AdminError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return REFUSED
    done = "would be made" if dry_run else "made"
    print(f"{len(steps)} changes {done}" if steps else "nothing to change")
    return WOULD_CHANGE if dry_run and steps else APPLIED


def read_platform(file: Path) -> Platform:
    """Read and validate the file. Raises: AdminError naming the field."""
    try:
        parsed = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AdminError(f"{file}: {error}") from error
    if not isinstance(parsed, dict):
        raise AdminError(f"{file}: must be a mapping with `models` and `tenants`")
    try:
        return validate(Platform, parsed)
    except RequestError as error:
        raise AdminError(f"{file}: {error.message}") from error


def _read_current(admin: Admin) -> Current:
    tenants = {one["id"]: one for one in admin.list("/tenants")}
    names = {tenant_id: tenant["name"] for tenant_id, tenant in tenants.items()}
    keys: dict[Named, Object] = {}
    for key in admin.list("/keys", in_force=True, order="asc"):
        if key["replaced_by"] is None:  # its successor is what the name stands for
            keys[names[key["tenant_id"]], key["name"]] = key
    key_names: dict[str | None, str | None] = {key["first_id"]: name for (_, name), key in keys.items()}
    key_names[None] = None
    # of a key out of force nothing is wanted, and what limits it limits nobody
    limits = [one for one in admin.list("/limits") if one["key_id"] in key_names]
    budgets = [one for one in admin.list("/budgets") if one["key_id"] in key_names]
    return Current(
        models={one["id"]: one for one in admin.list("/models")},
        tenants={tenant["name"]: tenant for tenant in tenants.values()},
        grants={(names[one["tenant_id"]], one["model"]): one for one in admin.list("/grants")},
        keys=keys,
        tariffs={
            (one["model"], one["version"], one["priority"]): one
            for one in admin.list("/tariffs", in_force=True)
        },
        limits={(names[one["tenant_id"]], key_names[one["key_id"]], one["model"]): one for one in limits},
        budgets={(names[one["tenant_id"]], key_names[one["key_id"]], one["period"]): one for one in budgets},
    )


def _do(admin: Admin, step: Step, keys_dir: Path, keys: dict[Named, str]) -> None:
    """Do a step. `keys`: ids by name; those that steps make are added."""
    body = step.body if step.of_key is None else {**(step.body or {}), "key": keys[step.of_key]}
    if step.makes_key is None:
        admin.call(step.method, step.path, body)
        return
    file = keys_dir / ".".join(step.makes_key)
    try:
        # before the key is made: it can't be seen again
        keys_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        can_write(file)
    except OSError as error:
        raise AdminError(f"{step.what} is not made, it could not be kept: {error}") from error
    made = admin.call(step.method, step.path, body)
    keys[step.makes_key] = made["id"]
    write_private(file, made["key"] + "\n")
