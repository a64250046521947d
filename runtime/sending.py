"""Sending webhooks: signed, to public addresses only, and to none but the address that was checked.

A name is resolved here, once a connection; all of its addresses must be public, and the connection goes to one of
those, so that a name can't mean one thing when it is checked and another when it is used. Redirects are not followed,
proxies of the environment are not used, and of an answer only the head is read.
"""

import asyncio
import email.utils
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from typing import Any

import httpcore
from standardwebhooks.webhooks import Webhook

from core.targets import check_url, is_public
from storage.webhooks import Tried

_RESOLVING_AT_ONCE = 32
TIMEOUT_S = 15.0  # of a whole try
_FAILURES = (
    *(OSError, ValueError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException),
    httpcore.UnsupportedProtocol,
)


class PrivateTargetError(OSError):
    """The name means an address of a private network."""


class _Checked(httpcore.AsyncNetworkBackend):
    """Connects to public addresses only."""

    def __init__(self, *, private_allowed: bool) -> None:
        self._private_allowed = private_allowed
        self._inner = httpcore.AnyIOBackend()
        # threads of its own: names that never resolve must not hold up what else the process does in threads
        self._resolving = ThreadPoolExecutor(_RESOLVING_AT_ONCE, "resolve")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._resolving, resolve)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not self._private_allowed:
            for address in addresses:
                if not is_public(ip_address(address.partition("%")[0])):
                    raise PrivateTargetError("the target is in a private network")
        error: Exception = httpcore.ConnectError("the name has no address")
        for address in addresses[:4]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error

    def close(self) -> None:
        """End the threads, without waiting for names that don't resolve."""
        self._resolving.shutdown(wait=False, cancel_futures=True)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class WebhookSender:
    """A pool of connections to receivers."""

    def __init__(self, *, private_allowed: bool) -> None:
        self._private_allowed = private_allowed
        self._backend = _Checked(private_allowed=private_allowed)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=None,
            max_keepalive_connections=32,
            keepalive_expiry=15.0,
            network_backend=self._backend,
        )

    async def send(
        self, url: str, message_id: str, body: str, secrets: Sequence[str]
    ) -> tuple[Tried, float | None]:
        """Try once; return what became of it and after how many seconds the receiver asks to be tried again."""
        now, began = datetime.now(UTC), time.monotonic()
        status, error, retry_s = None, None, None
        try:
            check_url(url, private_allowed=self._private_allowed)
            headers: dict[str | bytes, str | bytes] = {
                "Content-Type": "application/json",
                "User-Agent": "Headrace-Webhooks/1",
                "webhook-id": message_id,
                "webhook-timestamp": str(int(now.timestamp())),
                "webhook-signature": " ".join(
                    Webhook(secret).sign(message_id, now, body) for secret in secrets
                ),
            }
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._pool.stream("POST", url, headers=headers, content=body.encode()) as response,
            ):
                status = response.status
                asked = {name.lower(): value for name, value in response.headers}.get(b"retry-after")
                retry_s = _retry_after_s(asked, time.time())
        except TimeoutError:
            error = f"no answer within {TIMEOUT_S:g} s"
        except _FAILURES as failed:
            error = _plain(failed)
        if status is not None and not 200 <= status < 300:
            error = f"answered {status}"
        return Tried(status, error, round((time.monotonic() - began) * 1000)), retry_s

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()
        self._backend.close()


def _plain(error: Exception) -> str:
    # a receiver's name and its resolver's words are the owner's to read; no address of our network is in them
    return (str(error) or type(error).__name__)[:200]


def _retry_after_s(value: bytes | None, now_s: float) -> float | None:
    text = (value or b"").decode("latin-1").strip()
    if text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, TypeError):
        return None
