"""`headrace submit`, `tail`, `result` and `cancel`: tasks over HTTP, from anywhere.

Answers go to stdout, everything about them to stderr. The exit code says how the task ended: 0 completed, 3 failed,
4 incomplete, 5 cancelled, 6 expired, 7 not ended yet; 1: it could not be asked.
"""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.interrupt import run_until_interrupted
from cli.target import LOCAL, Api, Data, Key, NoTargetError, find_target
from core.lanes import Priority
from core.states import TaskState

if TYPE_CHECKING:
    from cli.answers import Event, Task
    from cli.client import Client

CHAT = "/v1/chat/completions"
NOT_ENDED = 7
EXIT_CODES = {
    TaskState.COMPLETED: 0,
    TaskState.FAILED: 3,
    TaskState.INCOMPLETE: 4,
    TaskState.CANCELLED: 5,
    TaskState.EXPIRED: 6,
}
TaskId = Annotated[str, typer.Argument(help="The task's id, as submit printed it.")]
Json = Annotated[bool, typer.Option("--json", help="Print what the API answers, as JSON.")]


def submit(
    prompt: Annotated[
        str | None, typer.Argument(help="What to ask; - reads it from stdin. Or give --body.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Default: the first that the key may use.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    body: Annotated[
        str | None,
        typer.Option(help="File of a whole request body (JSON), - for stdin, in place of a prompt."),
    ] = None,
    url: Annotated[str, typer.Option(help="The OpenAI route that the body is for.")] = CHAT,
    priority: Annotated[Priority, typer.Option()] = Priority.STANDARD,
    deadline_s: Annotated[
        float | None, typer.Option("--deadline", help="Seconds from now; later it is of no use.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(help="URL that is told of the end.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be given again.")] = None,
    follow: Annotated[bool, typer.Option("--tail", help="Print the answer as it comes.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Print the answer when it is whole.")] = False,
    json: Json = False,
    api: Api = None,
    key: Key = None,
    data: Data = LOCAL,
) -> None:
    """Submit a request to be run, and print its task's id."""
    if (prompt is None) == (body is None):
        raise typer.BadParameter("give a prompt or --body")
    if body is None and url != CHAT:
        raise typer.BadParameter("--url goes with --body")
    pairs = dict(pair.partition("=")[::2] for pair in metadata or ())
    given = _read_body(body) if body is not None else None

    async def work(client: "Client") -> int:
        asked = given or {"messages": [{"role": "user", "content": _text(str(prompt))}]}
        if "model" not in asked or model is not None:
            asked["model"] = model or await _first_model(client)
        asked |= {
            name: value
            for name, value in (("max_tokens", max_tokens), ("temperature", temperature))
            if value is not None
        }
        task = await client.submit(
            asked, url=url, priority=priority, deadline_s=deadline_s, metadata=pairs, webhook=webhook
        )
        if follow or wait:
            print(task.id, file=sys.stderr)
            return await (_follow(client, task.id, 0, json) if follow else _wait(client, task.id, json))
        _print_task(task, json, task.id)
        return 0

    _run(work, api, key, data)


def tail(
    task_id: TaskId,
    after: Annotated[int, typer.Option(min=0, help="Go on after this event.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the events, one a line.")] = False,
    api: Api = None,
    key: Key = None,
    data: Data = LOCAL,
) -> None:
    """Print a task's answer as it comes; goes on by itself when the connection breaks."""
    _run(lambda client: _follow(client, task_id, after, json), api, key, data)


def result(
    task_id: TaskId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the task's end.")] = False,
    json: Json = False,
    api: Api = None,
    key: Key = None,
    data: Data = LOCAL,
) -> None:
    """Print a task's answer."""

    async def work(client: "Client") -> int:
        if wait:
            return await _wait(client, task_id, json)
        return _show(await client.task(task_id), json)

    _run(work, api, key, data)


def cancel(task_id: TaskId, json: Json = False, api: Api = None, key: Key = None, data: Data = LOCAL) -> None:
    """Cancel a task; one that has ended stays as it is. Exit code 0: it is cancelled, or will be."""

    async def work(client: "Client") -> int:
        task = await client.cancel(task_id)
        _print_task(task, json, task.status)
        if task.status in (TaskState.CANCELLED, TaskState.CANCELLING):
            return 0
        print(f"headrace: {task_id} had {task.status} before", file=sys.stderr)
        return 1

    _run(work, api, key, data)


async def _follow(client: "Client", task_id: str, after: int, json: bool) -> int:
    from cli.client import GoneError

    printed = ""
    try:
        async for event in client.events(task_id, after):
            if json:
                print(event.model_dump_json(), flush=True)
            else:
                printed = _print_event(event, printed)
    except GoneError:
        print(f"headrace: the events of {task_id} are no longer kept; this is its result", file=sys.stderr)
        return _show(await client.task(task_id), json)
    task = await client.poll(task_id, every_s=1.0)
    if not json:
        if task.text.startswith(printed) and not after:
            print(task.text[len(printed) :], end="")  # what its events did not tell
        print()
        _explain(task)
    return EXIT_CODES[task.status]


def _print_event(event: "Event", printed: str) -> str:
    if event.type == "task.restarted":
        print("\nheadrace: the generation begins anew; what was printed is void", file=sys.stderr)
        return ""
    text = event.text
    print(text, end="", flush=True)
    return printed + text


async def _wait(client: "Client", task_id: str, json: bool) -> int:
    return _show(await client.wait(task_id), json)


def _show(task: "Task", json: bool) -> int:
    if not task.final:
        _print_task(task, json, "")
        print(f"headrace: {task.id} is {task.status}", file=sys.stderr)
        return NOT_ENDED
    _print_task(task, json, task.text)
    _explain(task)
    return EXIT_CODES[task.status]


def _explain(task: "Task") -> None:
    if task.status is not TaskState.COMPLETED:
        why = f": {task.error.message} ({task.error.code})" if task.error else ""
        print(f"headrace: {task.id} {task.status}{why}", file=sys.stderr)


def _print_task(task: "Task", json: bool, text: str) -> None:
    if json:
        print(task.raw)
    elif text:
        print(text)


async def _first_model(client: "Client") -> str:
    models = await client.models()
    if not models:
        raise NoTargetError("the key may use no model")
    return models[0]


def _text(given: str) -> str:
    return sys.stdin.read() if given == "-" else given


def _read_body(path: str) -> dict[str, Any]:
    import orjson

    try:
        body = orjson.loads(sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise typer.BadParameter(f"--body {path}: {error}") from error
    if not isinstance(body, dict):
        raise typer.BadParameter(f"--body {path}: not a JSON object")
    return body


def _run(work: Callable[["Client"], Awaitable[int]], api: str | None, key: str | None, data: Path) -> None:
    """Run a command's work with a client; what goes wrong is said in a line. Raises: typer.Exit."""
    from cli.client import Client, ClientError

    async def connected() -> int:
        async with Client(*find_target(api, key, data), patience_s=60.0) as client:
            return await work(client)

    try:
        code = run_until_interrupted(connected())
    except (ClientError, NoTargetError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)
