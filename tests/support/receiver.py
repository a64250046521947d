"""A receiver of webhooks on this machine, which answers as it is told."""

import asyncio
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: str


class Receiver:
    """`answers`: (status, a header line or nothing) one after the other, the last for ever; status 0 is silence."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self._answers = answers or ((200, ""),)
        self.got: list[Got] = []
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def received(self, count: int, within_s: float = 20.0) -> list[Got]:
        """Wait for so many requests and return them."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(self.got) >= count)
        return self.got

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            body = (await reader.readexactly(int(headers.get("content-length", "0")))).decode()
            status, header = self._answers[min(len(self.got), len(self._answers) - 1)]
            async with self._changed:
                self.got.append(Got(first.split(" ")[1], headers, body))
                self._changed.notify_all()
            if status == 0:
                await reader.read()  # until the sender gives up
                return
            extra = header + "\r\n" if header else ""
            writer.write(
                f"HTTP/1.1 {status} -\r\n{extra}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
            )
            await writer.drain()
        finally:
            writer.close()
