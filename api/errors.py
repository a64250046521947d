"""The one place that turns exceptions into responses."""

import secrets

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answer_headers import open_headers
from api.json import JsonResponse
from api.limits import exhausted
from api.sse import ClientGoneError
from runtime.metrics import REFUSALS, bounded
from schemas.errors import RequestError, error_body, overloaded
from services.change import ConflictError, MissingError
from services.hold import BudgetExhaustedError
from storage.errors import STORE_ERRORS, is_away

log = structlog.get_logger()
_CODES = {404: "not_found", 405: "method_not_allowed"}


def install(app: FastAPI) -> None:
    """Register the handlers."""

    @app.exception_handler(RequestError)
    async def request_error(_: Request, error: RequestError) -> Response:
        REFUSALS.labels(bounded("reason", error.code)).inc()
        return JsonResponse(error.body(), error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return JsonResponse(
            error_body(error.status_code, message, _CODES.get(error.status_code)),
            error.status_code,
            error.headers,
        )

    @app.exception_handler(RequestValidationError)
    async def parameter_error(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        # of a list, the place in it stands last: the parameter's own name is what a caller knows
        name = next((str(part) for part in reversed(first["loc"]) if isinstance(part, str)), "request")
        return JsonResponse(error_body(400, f"Invalid {name}: {first['msg']}.", "invalid_value", name), 400)

    @app.exception_handler(BudgetExhaustedError)
    async def budget(_: Request, error: BudgetExhaustedError) -> Response:
        refusal = exhausted(error)
        return JsonResponse(refusal.body(), refusal.status, refusal.headers)

    @app.exception_handler(MissingError)
    async def missing(_: Request, error: MissingError) -> Response:
        return JsonResponse(error_body(404, str(error), f"{error.kind}_not_found", error.kind), 404)

    @app.exception_handler(ConflictError)
    async def conflict(_: Request, error: ConflictError) -> Response:
        # nothing that trying again would change, as clients do on 409
        return JsonResponse(error_body(409, str(error), error.code), 409, {"x-should-retry": "false"})

    @app.exception_handler(ClientGoneError)
    async def gone(_: Request, __: ClientGoneError) -> Response:
        return Response(status_code=499)  # nobody reads it

    async def store_error(request: Request, error: Exception) -> Response:
        if not is_away(error):
            raise error
        log.warning("store_away", path=request.url.path, error=f"{type(error).__name__}: {error}")
        refusal = overloaded("A store is away; try again.", "store_unavailable", 2)
        return JsonResponse(refusal.body(), refusal.status, refusal.headers)

    for kind in STORE_ERRORS:
        app.add_exception_handler(kind, store_error)


class RequestIds:
    """Gives each request an id: the caller's `x-request-id` if it is sane, else a new one.

    What nothing else caught is answered here, so that an internal error has the id too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        sane = 0 < len(given) <= 128 and given.isascii() and given.decode("latin-1").isprintable()
        request_id = given if sane else b"req_" + secrets.token_hex(12).encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        added = open_headers()
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [
                    *message.get("headers", []),
                    *((name.lower().encode(), value.encode()) for name, value in added.items()),
                    (b"x-request-id", request_id),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log.error("internal_error", path=scope["path"], request_id=request_id.decode(), exc_info=error)
            if started:
                raise  # the server closes the connection
            answer = JsonResponse(error_body(500, "Internal error.", "internal_error"), 500)
            await answer(scope, receive, send_with_id)
