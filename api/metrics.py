"""/metrics of this API process, and the counting of its requests."""

import time

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.state import state_of
from runtime import metrics
from runtime.metrics_server import FORWARDED, may_read
from schemas.errors import RequestError

router = APIRouter(tags=["health"])
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def allowed(request: Request) -> bool:
    """Say whether a caller may see how the deployment does."""
    token = state_of(request).settings.metrics_token
    peer = request.client.host if request.client else ""
    forwarded = any(name in request.headers for name in FORWARDED)
    return may_read(token, request.headers.get("authorization", ""), peer, forwarded=forwarded)


@router.get("/metrics")
async def read(request: Request) -> Response:
    """Expose Prometheus metrics: to this machine, or to whoever has HEADRACE_METRICS_TOKEN where it is set."""
    if not allowed(request):
        if state_of(request).settings.metrics_token is not None:
            raise RequestError(
                401,
                "Metrics need the deployment's metrics token as a bearer.",
                "metrics_token",
                headers={"WWW-Authenticate": "Bearer"},
            )
        raise RequestError(403, "Metrics are for this machine: set HEADRACE_METRICS_TOKEN.", "metrics_local")
    body, content_type = metrics.render(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


class CountRequests:
    """Counts answers by route template, and times them to their first byte."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "unmatched")
                method = scope["method"] if scope["method"] in _METHODS else metrics.OTHER
                metrics.HTTP_REQUESTS.labels(route, method, str(message["status"])).inc()
                metrics.HTTP_SECONDS.labels(route, method).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, counted)
