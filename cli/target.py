"""Which API a command talks to, and as whom: options, then the environment, then the local stack's folder."""

from pathlib import Path
from typing import Annotated

import typer

Api = Annotated[
    str | None,
    typer.Option("--api", help="URL of the API. Default: the local stack's.", envvar="HEADRACE_API_URL"),
]
Key = Annotated[
    str | None,
    # not printed with the help: it is a secret
    typer.Option(
        "--key", help="API key. Default: the local stack's.", envvar="HEADRACE_API_KEY", show_envvar=True
    ),
]
Data = Annotated[Path, typer.Option("--data", help="Folder of the local stack.")]
LOCAL = Path(".headrace")


class NoTargetError(Exception):
    """Nothing says where the API is; the message says what to do."""


def find_target(api: str | None, key: str | None, data: Path) -> tuple[str, str]:
    """Return the API's URL and a key. Raises: NoTargetError."""
    if api is not None and key is not None:
        return api.rstrip("/"), key.strip()
    if api is not None:
        # the local stack's key is for the local stack: another server must not be shown it
        raise NoTargetError(f"{api} needs a key: --key or HEADRACE_API_KEY")
    from cli.stack.folder import DataFolder

    run = DataFolder(data).running()
    if run is None:
        raise NoTargetError(f"no stack runs on {data}: start one with `up`, or give --api and --key")
    try:
        return run.api_url, key.strip() if key is not None else run.api_key
    except OSError as error:
        raise NoTargetError(f"can't read the stack's key: {error}") from error
