"""Setting up over the database: the first key, and models."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from core.keys import lookup_of
from core.lanes import LengthBounds
from core.pricing import Tariff
from runtime.chat_template import ModelTokenizer
from runtime.resources import open_database
from runtime.settings import settings
from services.authenticate import authenticate
from services.register import create_key, register_model, revoke_key
from services.retry import list_dead, retry


def _run(work: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    async def run() -> None:
        database = open_database(settings(), name="cli")
        try:
            await work(database)
        finally:
            await database.dispose()

    asyncio.run(run())


def bootstrap(key_file: Path, tenant: str) -> None:
    """Write an API key of the tenant to a file, unless it holds one in force already."""
    pepper = settings().key_pepper.get_secret_value().encode()

    known = key_file.read_text().strip() if key_file.exists() else ""

    async def work(database: AsyncEngine) -> None:
        if known and await authenticate(database, known, pepper):
            return
        _write_secret(key_file, await create_key(database, tenant=tenant, name="bootstrap", pepper=pepper))
        print(f"API key of tenant {tenant} written to {key_file}")

    _run(work)


def _write_secret(file: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    unfinished = file.with_name(file.name + ".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text + "\n")
    unfinished.replace(file)


def print_new_key(tenant: str, name: str) -> None:
    """Create a key and print it: the only time that it can be seen."""
    pepper = settings().key_pepper.get_secret_value().encode()

    async def work(database: AsyncEngine) -> None:
        print(await create_key(database, tenant=tenant, name=name, pepper=pepper))

    _run(work)


def revoke(key: str) -> int:
    """Revoke a key named by itself or by its first characters; return the exit code."""
    done = False

    async def work(database: AsyncEngine) -> None:
        nonlocal done
        done = await revoke_key(database, lookup_of(key))

    _run(work)
    if not done:
        print("headrace: no such key in force", file=sys.stderr)
    return 0 if done else 1


def print_dead(limit: int) -> None:
    """Print the tasks of all tenants that ran out of attempts."""

    async def work(database: AsyncEngine) -> None:
        table = Table("task", "model", "lane", "attempts", "reason", "ended")
        for task in await list_dead(database, limit=limit):
            ended = task.finished_at.isoformat(timespec="seconds") if task.finished_at else ""
            table.add_row(
                task.id, task.lane.model, task.lane.queue, str(task.attempt), task.failure_message, ended
            )
        Console().print(table)

    _run(work)


def retry_task(task_id: str) -> int:
    """Do a failed task again and print the new one's id; the control process publishes it. Exit code."""
    code = 0

    async def work(database: AsyncEngine) -> None:
        nonlocal code
        again = await retry(database, task_id)
        if again is None:
            print(f"headrace: no failed task {task_id} whose body is still kept", file=sys.stderr)
            code = 1
        else:
            print(again.task_id)

    _run(work)
    return code


def add_model(
    name: str,
    path: Path,
    *,
    max_model_len: int | None,
    default_max_tokens: int | None,
    short: int,
    medium: int,
    prices: tuple[float, float, float],
    tenant: str,
) -> None:
    """Register a model; `prices` are USD per million prompt, cached prompt and output tokens."""
    path = path.resolve()
    try:
        config = orjson.loads((path / "config.json").read_bytes())
        ModelTokenizer(path)
        bounds = LengthBounds(short, medium)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    own = config.get("max_position_embeddings")
    if max_model_len is None and own is None:
        raise typer.BadParameter(f"{path}/config.json names no context length: give --max-model-len")
    if max_model_len is not None and own is not None and max_model_len > own:
        raise typer.BadParameter(f"--max-model-len {max_model_len} is above the model's own {own}")

    async def work(database: AsyncEngine) -> None:
        await register_model(
            database,
            name=name,
            path=str(path),
            max_model_len=max_model_len or own,
            default_max_tokens=default_max_tokens,
            bounds=bounds,
            tariff=Tariff(*(round(price * 1_000_000) for price in prices)),
            tenant=tenant,
        )
        print(f"model {name} registered and granted to tenant {tenant}")

    _run(work)
