"""Is a store away, or was the statement wrong? Only the first is worth waiting for.

Source: PostgreSQL's error codes (SQLSTATE classes), Appendix A.
"""

from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

# connection exception, insufficient resources (disk, memory, connections), operator intervention, system error
_AWAY_CLASSES = ("08", "53", "57", "58")
# serialization failure, deadlock, lock not available; and a primary that became a standby
_AWAY_CODES = ("40001", "40P01", "55P03", "25006")

STORE_ERRORS = (DBAPIError, PoolTimeoutError, RedisError, OSError, TimeoutError)  # to catch, then to judge


def is_away(error: BaseException) -> bool:
    """Say whether the same call may succeed later without being changed."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, STORE_ERRORS)
    if error.connection_invalidated or isinstance(error, OperationalError | InterfaceError):
        return True
    state = getattr(error.orig, "sqlstate", None) or ""
    return state[:2] in _AWAY_CLASSES or state in _AWAY_CODES
