"""The trace that a request belongs to: its caller's `traceparent` in, the trace's id out."""

from collections.abc import Callable

from opentelemetry.util.types import AttributeValue
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.tracing import RequestTrace, Tracer, enter_request

HEADER = b"x-headrace-trace-id"


class TraceRequests:
    """Opens a request's trace; a response about a task accepted in it names the trace."""

    def __init__(self, app: ASGIApp, tracer: Callable[[], Tracer | None]) -> None:
        """`tracer` is asked at each request: it is opened with the process."""
        self._app, self._tracer = app, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"traceparent")
        trace = RequestTrace(self._tracer(), given and given.decode("latin-1"), lambda: _about(scope))
        enter_request(trace)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start" and trace.task is not None:
                trace_id = trace.task.trace_id_hex.encode()
                message["headers"] = [*message.get("headers", []), (HEADER, trace_id)]
            await send(message)

        await self._app(scope, receive, named)


def _about(scope: Scope) -> dict[str, AttributeValue | None]:
    return {
        "http.request.method": scope["method"],
        "http.route": getattr(scope.get("route"), "path", None),
    }
