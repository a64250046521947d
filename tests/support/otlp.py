"""An OTLP receiver in the test's process: what an OpenTelemetry collector would get, over HTTP and protobuf."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.waiting import eventually


@dataclass(frozen=True, slots=True)
class Received:
    """One span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty: a root
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[tuple[str, int, dict[str, Any]]]
    links: list[tuple[str, str, dict[str, Any]]]  # trace, span, attributes
    error: str | None
    raw: str  # everything in it, to look for what must not be there

    @property
    def took_s(self) -> float:
        """From start to end."""
        return (self.end_ns - self.start_ns) / 1e9


class Otlp:
    """All spans received so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Received] = []

    def take(self, body: bytes) -> None:
        """Read one export request."""
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes).get("service.name", "")
            for scope in resource.scope_spans:
                self.spans.extend(_received(service, span) for span in scope.spans)

    def of(self, trace_id: str) -> list[Received]:
        """A trace's spans, each once."""
        return list({span.span_id: span for span in self.spans if span.trace_id == trace_id}.values())

    async def trace(self, trace_id: str, *names: str, within_s: float = 15.0) -> list[Received]:
        """A trace's spans once all of these names are among them."""

        def complete() -> bool:
            return set(names) <= {span.name for span in self.of(trace_id)}

        await eventually(complete, within_s, f"spans {names} of trace {trace_id}")
        return self.of(trace_id)


@contextmanager
def otlp_receiver() -> Iterator[Otlp]:
    """Listen on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            otlp.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    otlp = Otlp(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield otlp
    finally:
        server.shutdown()
        server.server_close()


def _received(service: str, span: Any) -> Received:
    return Received(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        [(event.name, event.time_unix_nano, _attributes(event.attributes)) for event in span.events],
        [(link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes)) for link in span.links],
        (span.status.message or "error") if span.status.code == 2 else None,
        str(span),
    )


def _attributes(found: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in found}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None
