"""Rows to test with: a tenant, its key, a granted model, and tasks."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from core.lanes import Lane, LengthBounds, LengthClass, Priority
from core.pricing import Tariff
from services.authenticate import authenticate
from services.new_id import new_id
from services.register import create_key, register_model
from services.submit import submit
from storage.records import Caller, NewTask

MODEL = "org/model"
PEPPER = b"pepper"
TARIFF = Tariff(prompt_usd_micros=50_000, cached_usd_micros=25_000, output_usd_micros=200_000)


@asynccontextmanager
async def opened(database_url: str) -> AsyncIterator[AsyncEngine]:
    """A pool on a test's database."""
    engine = create_async_engine(make_url(database_url).set(drivername="postgresql+asyncpg"))
    try:
        yield engine
    finally:
        await engine.dispose()


async def seed_caller(database: AsyncEngine, tenant: str = "default") -> Caller:
    """A tenant with a key and the model granted."""
    await register_model(
        database,
        name=MODEL,
        path="/models/org/model",
        max_model_len=4096,
        default_max_tokens=None,
        bounds=LengthBounds(),
        tariff=TARIFF,
        tenant=tenant,
    )
    key = await create_key(database, tenant=tenant, name="test", pepper=PEPPER)
    access = await authenticate(database, key, PEPPER)
    assert access is not None
    return access.caller


def new_task(
    caller: Caller,
    *,
    priority: Priority = Priority.STANDARD,
    deadline_s: float = 3600.0,
    max_attempts: int = 3,
    request: str = '{"messages":[]}',
) -> NewTask:
    """A task as admission would hand it over."""
    return NewTask(
        id=new_id("task"),
        caller=caller,
        lane=Lane(MODEL, LengthClass.SHORT, priority),
        url="/v1/chat/completions",
        request=request,
        prompt_tokens=10,
        max_output_tokens=20,
        deadline_s=deadline_s,
        max_attempts=max_attempts,
    )


async def seed_task(database: AsyncEngine, caller: Caller, **options: object) -> NewTask:
    """A queued task."""
    new = new_task(caller, **options)  # type: ignore[arg-type]
    await submit(database, new)
    return new


async def end_lease(database: AsyncEngine, task_id: str) -> None:
    """Let a lease have run out, as if its worker had been silent."""
    async with database.begin() as connection:
        await connection.execute(
            text("UPDATE tasks SET lease_expires_at = now() - interval '1 second' WHERE id = :id"),
            {"id": task_id},
        )


def random_name(prefix: str) -> str:
    """A name nobody else uses."""
    return f"{prefix}-{secrets.token_hex(4)}"
