"""How `headrace admin` reaches the API, and how it prints what that answers."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

Object = dict[str, Any]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        help="Holds an administrator's key. Default: the local stack's.",
        envvar="HEADRACE_ADMIN_KEY_FILE",
    ),
]


class AdminError(Exception):
    """The API can't be asked, or refused; the message is for whoever ran the command."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Where:
    """Where the API is, as whom to ask, and in which form to print. See the options of `headrace admin`."""

    api: str | None
    key_file: Path | None
    data: Path
    json: bool = False

    def find(self) -> tuple[str, str]:
        """Return the API's URL and a key. Raises: AdminError."""
        url, file = self.api, self.key_file
        if url is not None and file is None:
            # the local stack's key is for the local stack: another server must not be shown it
            raise AdminError(f"{url} needs a key: --key-file or HEADRACE_ADMIN_KEY_FILE")
        if url is None or file is None:
            from cli.stack.folder import DataFolder

            run = DataFolder(self.data).running()
            if run is None:
                raise AdminError(f"no stack runs on {self.data}: give --api and --key-file")
            url, file = url or run.api_url, file or Path(run.admin_key_file)
        try:
            return url.rstrip("/"), file.read_text().strip()
        except OSError as error:
            raise AdminError(f"can't read the key: {error}") from error


class Admin:
    """A client of /v1/admin. Nothing is tried again by itself: a key made twice would be lost once."""

    def __init__(self, url: str, key: str) -> None:
        import httpx

        self._http = httpx.Client(
            base_url=f"{url}/v1/admin",
            headers={"Authorization": f"Bearer {key}"},
            timeout=30.0,
            trust_env=False,  # a proxy for the web must not get the local stack's key
        )

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **parameters: Any
    ) -> Object:
        """Call a route; parameters that are None are left out. Raises: AdminError."""
        import httpx

        given = {name: value for name, value in parameters.items() if value is not None}
        try:
            response = self._http.request(method, path, json=body, params=given)
            answer: Object = response.json()
        except httpx.TransportError as error:
            raise AdminError(f"no answer from {self._http.base_url}: {error}") from error
        except ValueError as error:
            raise AdminError(f"{response.url} gave an answer that isn't Headrace's") from error
        if not response.is_success:
            found = answer.get("error") or {}
            message = f"{found.get('message', 'refused')} ({response.status_code}, {found.get('code')})"
            raise AdminError(message, response.status_code, found.get("code"))
        return answer

    def list(self, path: str, limit: int | None = None, **parameters: Any) -> Iterator[Object]:
        """Yield a list's objects, all of them or the first `limit`, page by page. Raises: AdminError."""
        after: str | None = None
        left = limit
        while left is None or left > 0:
            page = self.call("GET", path, limit=min(100, left or 100), after=after, **parameters)
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["last_id"]
            left = None if left is None else left - len(page["data"])

    def close(self) -> None:
        """End the connections."""
        self._http.close()


@contextmanager
def connected(context: typer.Context) -> Iterator[Admin]:
    """Open a client for a command; what goes wrong is said in a line, and ends the command with 1."""
    where: Where = context.obj
    try:
        admin = Admin(*where.find())
        try:
            yield admin
        finally:
            admin.close()
    except AdminError as error:
        print(f"headrace: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


def show(context: typer.Context, found: Iterator[Object] | Sequence[Object], columns: Sequence[str]) -> None:
    """Print objects as a table of those columns, or whole as JSON lines."""
    where: Where = context.obj
    if where.json:
        import orjson

        for one in found:
            print(orjson.dumps(one).decode())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for one in found:
        table.add_row(*(_cell(name, one.get(name)) for name in columns))
    # in a pipe no line is wrapped or cut
    Console(width=None if sys.stdout.isatty() else 400).print(table)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_at"):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
