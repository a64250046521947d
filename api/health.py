"""/healthz: this process lives. /readyz: it can accept."""

import asyncio

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from api.json import JsonResponse
from api.state import state_of
from services.measure import ping

router = APIRouter(tags=["health"])
log = structlog.get_logger()


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer as long as the process does."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Ask the stores. Without Postgres nothing can be accepted; without Redis there are no streams."""
    state = state_of(request)
    stores = {"postgres": "ok", "redis": "ok"}
    try:
        async with asyncio.timeout(5):
            await ping(state.database)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        log.warning("not_ready", store="postgres", error=type(error).__name__)
        stores["postgres"] = "away"
    try:
        await state.redis.ping()
    except (RedisError, OSError) as error:
        log.warning("not_ready", store="redis", error=type(error).__name__)
        stores["redis"] = "away"
    ready = stores["postgres"] == "ok"
    return JsonResponse(
        {"status": "ready" if ready else "not ready", "stores": stores}, 200 if ready else 503
    )
