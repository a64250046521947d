"""Headless Chromium over its DevTools protocol: enough to open a page, wait for it, read it, picture it.

Source: chromedevtools.github.io/devtools-protocol, domains Network, Page and Runtime.
"""

import asyncio
import base64
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium")

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # which Chromium can't set up for root
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little of it
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-port=0",
)
_LISTENING = re.compile(rb"DevTools listening on ws://([^/]+)/")


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a DevTools method. Raises: AssertionError with what it refused."""
        number = next(self._numbers)
        await self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:  # events come between
            answer = json.loads(await self._connection.recv())
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    async def log_in(self, user: str, password: str) -> None:
        """Send credentials with every request from now on."""
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        await self.call("Network.enable")
        await self.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {basic}"})

    async def open(self, url: str) -> None:
        """Go to an address; what it shows is waited for by `until`."""
        answer = await self.call("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    async def until(self, expression: str, within_s: float = 15.0) -> Any:
        """The value of a JavaScript expression once it is true. Raises: AssertionError, the page's text."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if value := await self.evaluate(expression):
                        return value
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.evaluate("document.body?.innerText")
            raise AssertionError(f"not within {within_s} s: {expression}\n{text}") from None

    async def until_shown(self, text: str) -> None:
        """Return as soon as the page shows the text."""
        await self.until(f"document.body?.innerText.includes({json.dumps(text)})")

    async def row(self, table: str, *texts: str) -> list[str]:
        """The texts of the cells of the first row that shows all of these, once there is one.

        Looked for and read in one step: scripts may draw a table anew at any moment.
        """
        wanted = f"cells => {json.dumps(texts)}.every(text => cells.some(cell => cell.includes(text)))"
        cells = "row => [...row.cells].map(cell => cell.textContent.trim())"
        rows = f"[...document.querySelectorAll({json.dumps(table + ' tbody tr')})]"
        found: list[str] = await self.until(f"{rows}.map({cells}).find({wanted})")
        return found

    async def dom(self) -> str:
        """The document as it stands, with what scripts made of it."""
        return str(await self.evaluate("document.documentElement.outerHTML"))

    async def picture(self) -> bytes:
        """What is seen, as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])


@asynccontextmanager
async def browser(folder: Path, size: tuple[int, int] = (1500, 1000)) -> AsyncIterator[Page]:
    """Start Chromium with a profile in `folder`; it ends with the block."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *_OPTIONS,
        f"--window-size={size[0]},{size[1]}",
        f"--user-data-dir={folder}",
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        address = await asyncio.wait_for(_address(process), timeout=30)
        async with httpx.AsyncClient(trust_env=False) as client:
            tabs = (await client.get(f"http://{address}/json/list")).json()
        url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        async with connect(url, max_size=None, proxy=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.communicate(), timeout=10)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = b""
    while line := await process.stderr.readline():
        said += line
        if found := _LISTENING.search(line):
            return found[1].decode()
    raise AssertionError(f"chromium ended: {said.decode(errors='replace')}")
