"""A worker behind a network that can be cut: a namespace of its own, a cable, and relays to the stores.

The stores listen on loopback, which a namespace does not share; a relay on the host's end of the cable
forwards to them. Taking the cable down drops packets without closing anything, as a broken network does.
"""

import asyncio
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

import pytest


class Network:
    """One namespace with its cable. Only the addresses of the two ends exist in it."""

    def __init__(self) -> None:
        self.name = f"hr{secrets.token_hex(3)}"
        subnet = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self.host, self.guest = f"{subnet}.1", f"{subnet}.2"
        self._servers: list[asyncio.Server] = []

    @property
    def prefix(self) -> list[str]:
        """Put before a command, it runs inside."""
        return ["ip", "netns", "exec", self.name]

    def up(self) -> None:
        """Make it."""
        cable, end = f"{self.name}a", f"{self.name}b"
        _ip("netns", "add", self.name)
        _ip("link", "add", cable, "type", "veth", "peer", "name", end, "netns", self.name)
        _ip("addr", "add", f"{self.host}/30", "dev", cable)
        _ip("link", "set", cable, "up")
        _ip("-n", self.name, "addr", "add", f"{self.guest}/30", "dev", end)
        _ip("-n", self.name, "link", "set", end, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")

    def down(self) -> None:
        """Remove it."""
        for server in self._servers:
            server.close()
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"{self.name}a")
        _ip("netns", "del", self.name)

    def cut(self) -> None:
        """Drop everything from now on."""
        _ip("link", "set", f"{self.name}a", "down")

    def mend(self) -> None:
        """Let packets through again."""
        _ip("link", "set", f"{self.name}a", "up")

    async def reachable(self, url: str) -> str:
        """The URL by which the inside reaches a server on this machine's loopback."""
        parts = urlsplit(url)
        port = parts.port

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))

        server = await asyncio.start_server(relay, self.host, 0)
        self._servers.append(server)
        user, _, _ = parts.netloc.rpartition("@")
        here = server.sockets[0].getsockname()[1]
        return urlunsplit(parts._replace(netloc=f"{user}@{self.host}:{here}"))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    """A network for one test; skips where the user may not make one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    made = Network()
    try:
        made.up()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.down()
