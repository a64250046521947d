"""`/metrics` of a process without an HTTP server of its own: workers and control. Also `/healthz`.

Who may read: see `may_read`, which the API uses too.
"""

import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

from pydantic import SecretStr

from runtime import metrics
from runtime.settings import Settings

FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


def may_read(token: SecretStr | None, authorization: str, peer: str, *, forwarded: bool) -> bool:
    """Say whether a caller may read metrics.

    With a token whoever sends it as a bearer; without one only a caller on this machine that came by no proxy.
    """
    if token is not None:
        scheme, _, given = authorization.partition(" ")
        wanted = token.get_secret_value().encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), wanted)
    try:
        return ip_address(peer).is_loopback and not forwarded
    except ValueError:
        return False


class MetricsServer:
    """Serves on a thread of its own until `stop`."""

    def __init__(self, host: str, port: int, token: SecretStr | None) -> None:
        """Listen at once. Raises: OSError when the port is taken."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path == "/healthz":
                    self._answer(200, b"ok\n", "text/plain")
                elif self.path.partition("?")[0] != "/metrics":
                    self._answer(404, b"there are /metrics and /healthz\n", "text/plain")
                elif not may_read(
                    token,
                    self.headers.get("authorization", ""),
                    self.client_address[0],
                    forwarded=any(name in self.headers for name in FORWARDED),
                ):
                    self._answer(401 if token else 403, b"HEADRACE_METRICS_TOKEN opens it\n", "text/plain")
                else:
                    self._answer(200, *metrics.render(self.headers.get("accept", "")))

            def _answer(self, status: int, body: bytes, content_type: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                if status == 401:
                    self.send_header("WWW-Authenticate", "Bearer")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: scrapes are no news."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serve_metrics(settings: Settings) -> Iterator[None]:
    """Serve while in the block, where a port is set. Raises: OSError when it is taken."""
    if settings.metrics_port is None:
        yield
        return
    server = MetricsServer(settings.metrics_host, settings.metrics_port, settings.metrics_token)
    try:
        yield
    finally:
        server.stop()
