"""Setting up over the database: the first key, and models."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from cli.private_file import write_private
from core.keys import lookup_of
from core.lanes import LengthBounds
from core.pricing import Tariff
from core.scopes import ADMINISTRATORS, USUAL, Scope
from runtime.chat_template import ModelTokenizer
from runtime.resources import open_database
from runtime.settings import settings
from services.authenticate import authenticate
from services.change import MissingError
from services.manage_keys import revoke_key
from services.register import create_key, register_model
from services.retry import list_dead, retry
from storage.audit import Actor

OPERATOR = "operator"  # the tenant of administrators' keys


def _run(work: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    async def run() -> None:
        database = open_database(settings(), name="cli")
        try:
            await work(database)
        finally:
            await database.dispose()

    asyncio.run(run())


def bootstrap(key_file: Path | None, tenant: str, admin_key_file: Path | None) -> None:
    """Write an API key of the tenant to a file, and an administrator's to another, unless those are in force."""
    pepper = settings().key_pepper.get_secret_value().encode()

    def known(file: Path) -> str:
        return file.read_text().strip() if file.exists() else ""

    async def write(database: AsyncEngine, file: Path, owner: str, scopes: frozenset[Scope]) -> None:
        if await authenticate(database, known(file), pepper):
            return
        await create_key(
            database,
            tenant=owner,
            name="bootstrap",
            pepper=pepper,
            scopes=scopes,
            keep=lambda text: write_private(file, text + "\n"),
        )
        print(f"key of tenant {owner} ({', '.join(sorted(scopes))}) written to {file}")

    async def work(database: AsyncEngine) -> None:
        if key_file is not None:
            await write(database, key_file, tenant, USUAL)
        if admin_key_file is not None:
            # a tenant of its own: administrators' keys use no model, and nobody disables them by mistake
            await write(database, admin_key_file, OPERATOR, ADMINISTRATORS)

    _run(work)


def print_new_key(tenant: str, name: str) -> None:
    """Create a key and print it: the only time that it can be seen."""
    pepper = settings().key_pepper.get_secret_value().encode()

    async def work(database: AsyncEngine) -> None:
        print(await create_key(database, tenant=tenant, name=name, pepper=pepper))

    _run(work)


def revoke(key: str) -> int:
    """Revoke a key named by itself or by its first characters; return the exit code."""

    async def work(database: AsyncEngine) -> None:
        await revoke_key(database, Actor("headrace key revoke"), lookup_of(key))

    try:
        _run(work)
    except MissingError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    return 0


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
    tool_parser: str | None,
    reasoning_parser: str | None,
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
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
        )
        print(f"model {name} registered and granted to tenant {tenant}")

    _run(work)
