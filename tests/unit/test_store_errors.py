"""Which errors of stores are worth waiting for."""

import asyncpg
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from storage.errors import is_away


@pytest.mark.parametrize(
    "error",
    [
        RedisConnectionError(),
        ConnectionRefusedError(),
        TimeoutError(),
        OperationalError("", None, Exception()),
        InterfaceError("", None, Exception()),
        DBAPIError("", None, asyncpg.DiskFullError()),
        DBAPIError("", None, asyncpg.AdminShutdownError()),
        DBAPIError("", None, asyncpg.DeadlockDetectedError()),
        DBAPIError("", None, Exception(), connection_invalidated=True),
    ],
)
def test_a_store_that_is_away_is_waited_for(error: Exception) -> None:
    assert is_away(error)


@pytest.mark.parametrize(
    "error",
    [
        DBAPIError("", None, asyncpg.UntranslatableCharacterError()),
        DBAPIError("", None, Exception()),
        ValueError(),
    ],
)
def test_a_statement_that_is_wrong_is_not_tried_again(error: Exception) -> None:
    assert not is_away(error)
