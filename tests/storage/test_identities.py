"""Keys on a real Postgres."""

from core.keys import lookup_of
from services.authenticate import authenticate
from services.manage_keys import revoke_key
from services.register import create_key
from storage.audit import Actor
from tests.support.seeds import PEPPER, opened, seed_caller


async def test_a_revoked_key_opens_nothing_and_is_revoked_once(database_url: str) -> None:
    async with opened(database_url) as database:
        await seed_caller(database)
        key = await create_key(database, tenant="default", name="k", pepper=PEPPER)
        access = await authenticate(database, key, PEPPER)
        assert access is not None
        assert list(access.models) == ["org/model"]
        revoked = await revoke_key(database, Actor("test"), lookup_of(key))
        assert await authenticate(database, key, PEPPER) is None
        assert await revoke_key(database, Actor("test"), lookup_of(key)) == revoked


async def test_a_key_of_another_pepper_opens_nothing(database_url: str) -> None:
    async with opened(database_url) as database:
        key = await create_key(database, tenant="default", name="k", pepper=PEPPER)
        assert await authenticate(database, key, b"another pepper") is None
