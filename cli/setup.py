"""Setting up over the database, before there is an API to ask: the first keys, and models.

Everything after that is `headrace admin`, over HTTP.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from cli.private_file import write_private
from core.lanes import LengthBounds
from core.pricing import Tariff
from core.scopes import ADMINISTRATORS, USUAL, Scope
from runtime.model_folder import context_of
from runtime.resources import open_database
from runtime.settings import settings
from services.authenticate import authenticate
from services.register import create_key, register_model

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
    probe_prompt: str | None,
    probe_words: Sequence[str],
    version: str | None,
) -> None:
    """Register a model; `prices` are USD per million prompt, cached prompt and output tokens."""
    path = path.resolve()
    if probe_words and not probe_prompt:
        raise typer.BadParameter("--probe-word needs --probe-prompt")
    try:
        context = context_of(path, max_model_len)
        bounds = LengthBounds(short, medium)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error

    async def work(database: AsyncEngine) -> None:
        await register_model(
            database,
            name=name,
            path=str(path),
            max_model_len=context,
            default_max_tokens=default_max_tokens,
            bounds=bounds,
            tariff=Tariff(*(round(price * 1_000_000) for price in prices)),
            tenant=tenant,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            probe_prompt=probe_prompt,
            probe_words=probe_words,
            version=version,
        )
        print(f"model {name} registered and granted to tenant {tenant}")

    _run(work)
