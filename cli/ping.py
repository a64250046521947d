"""`headrace ping`: one question to one process, answered by the exit code; for health checks.

A check runs again and again beside the process it asks about, so each imports only what its question needs.
"""

import asyncio
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from http.client import HTTPException
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

TIMEOUT_S = 4.0  # below any sensible health check's own, so that the reason gets printed


def worker(name: str, within_s: float) -> int:
    """Whether a worker serves, by its row."""
    from services.check import check_worker

    return _ask_database(lambda database: check_worker(database, name, within_s=within_s), f"worker {name}")


def control() -> int:
    """Whether some control process leads."""
    from services.check import check_leader

    return _ask_database(lambda database: check_leader(database, "control"), "control: led by")


def api(url: str) -> int:
    """Whether an API process can accept tasks."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is beside us: never by a proxy
    try:
        with direct.open(f"{url.rstrip('/')}/readyz", timeout=TIMEOUT_S):
            print(f"{url}: ready")
            return 0
    except urllib.error.HTTPError as error:
        return _failed(f"{url}: {error.code} {error.read(1000).decode(errors='replace')}")
    except (OSError, HTTPException, ValueError) as error:
        return _failed(f"{url}: {error}")


def _ask_database(ask: Callable[["AsyncEngine"], Awaitable[str]], what: str) -> int:
    from sqlalchemy.exc import SQLAlchemyError

    from runtime.resources import open_database
    from runtime.settings import settings
    from services.check import NotServingError

    async def run() -> str:
        database = open_database(settings(), name="ping")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await ask(database)
        finally:
            await database.dispose()

    try:
        answer = asyncio.run(run())
    except NotServingError as error:
        return _failed(str(error))
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        return _failed(f"the database does not answer: {type(error).__name__}")  # its text may hold the URL
    print(f"{what} {answer}")
    return 0


def _failed(why: str) -> int:
    print(f"headrace ping: {why}", file=sys.stderr)
    return 1
