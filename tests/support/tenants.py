"""Another tenant on a running stack."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from services.register import create_key
from tests.support.seeds import opened, random_name
from tests.support.stacks import SharedStack


@asynccontextmanager
async def other_tenant(stack: SharedStack) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the key of a new tenant that may use no model."""
    async with opened(stack.database_url) as database:
        pepper = stack.environment["HEADRACE_KEY_PEPPER"].encode()
        key = await create_key(database, tenant=random_name("other"), name="test", pepper=pepper)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=stack.api_url, headers=headers, timeout=30) as client:
        yield client
