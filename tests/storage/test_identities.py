"""Keys on a real Postgres."""

from core.keys import lookup_of
from services.authenticate import authenticate
from services.register import create_key, revoke_key
from tests.support.seeds import PEPPER, opened, seed_caller


async def test_a_revoked_key_opens_nothing_and_is_revoked_once(database_url: str) -> None:
    async with opened(database_url) as database:
        await seed_caller(database)
        key = await create_key(database, tenant="default", name="k", pepper=PEPPER)
        access = await authenticate(database, key, PEPPER)
        assert access is not None
        assert list(access.models) == ["org/model"]
        assert await revoke_key(database, lookup_of(key))
        assert await authenticate(database, key, PEPPER) is None
        assert not await revoke_key(database, lookup_of(key))


async def test_a_key_of_another_pepper_opens_nothing(database_url: str) -> None:
    async with opened(database_url) as database:
        key = await create_key(database, tenant="default", name="k", pepper=PEPPER)
        assert await authenticate(database, key, b"another pepper") is None
