"""`headrace batch …`: one function per subcommand, over HTTP."""

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.interrupt import run_until_interrupted
from cli.target import LOCAL, Api, Data, Key, NoTargetError, find_target

if TYPE_CHECKING:
    from cli.batch_client import BatchAnswer, BatchClient

app = typer.Typer(help="Batches of requests or rows, over HTTP.", no_args_is_help=True)
_INTERRUPTED = 130  # as a shell reports a command ended by Ctrl-C


@app.command("run")
def run(
    input: Annotated[
        Path,
        typer.Argument(help="Requests (.jsonl); or, with --template, rows: .txt, .csv, .parquet, .jsonl."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="One line a request or row; .csv for rows.")],
    template: Annotated[
        str | None, typer.Option(help='A prompt with columns in braces: "Summarise: {text}".')
    ] = None,
    model: Annotated[str | None, typer.Option(help="Of rows. Default: the only one that there is.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of each row's answer.")] = None,
    system: Annotated[str | None, typer.Option(help="System message before each row's prompt.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="Of rows.")] = None,
    window: Annotated[str, typer.Option(help="What is not done by then expires.")] = "24h",
    api: Api = None,
    key: Key = None,
    data: Data = LOCAL,
) -> None:
    """Run a file to its end. Interrupted, the same command goes on where it was."""
    from rich.console import Console

    from cli.batch_rows import Prompting
    from cli.batch_run import Asked
    from cli.batch_run import run as run_batch

    if template is None and (model, max_tokens, system, temperature) != (None, None, None, None):
        raise typer.BadParameter("--model, --max-tokens, --system and --temperature go with --template")
    console = Console(stderr=True)

    async def work(client: "BatchClient") -> int:
        prompting = None
        if template is not None:
            name = model or await _only_model(client)
            prompting = Prompting(template, name, max_tokens, system, temperature)
        tally = await run_batch(client, Asked(input, output, window, prompting), console)
        lost = f", {tally.missing} without a result" if tally.missing else ""
        console.print(f"{output}: {tally.lines} results, {tally.failed} failed{lost}", highlight=False)
        return 1 if tally.failed or tally.missing else 0

    raise typer.Exit(_with_client(api, key, data, work))


@app.command("status")
def status(batch_id: str, api: Api = None, key: Key = None, data: Data = LOCAL) -> None:
    """Show one batch."""

    async def work(client: "BatchClient") -> int:
        _show(await client.batch(batch_id))
        return 0

    raise typer.Exit(_with_client(api, key, data, work))


@app.command("cancel")
def cancel(batch_id: str, api: Api = None, key: Key = None, data: Data = LOCAL) -> None:
    """Cancel a batch; what it has done is kept."""

    async def work(client: "BatchClient") -> int:
        _show(await client.cancel_batch(batch_id))
        return 0

    raise typer.Exit(_with_client(api, key, data, work))


@app.command("retry")
def retry(batch_id: str, api: Api = None, key: Key = None, data: Data = LOCAL) -> None:
    """Submit the failed lines of a batch that has ended again, as a new batch."""

    async def work(client: "BatchClient") -> int:
        from cli.batch_run import retry as retry_batch

        with tempfile.TemporaryDirectory(prefix="headrace-retry-") as folder:
            _show(await retry_batch(client, batch_id, Path(folder)))
        return 0

    raise typer.Exit(_with_client(api, key, data, work))


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20,
    api: Api = None,
    key: Key = None,
    data: Data = LOCAL,
) -> None:
    """List the newest batches."""

    async def work(client: "BatchClient") -> int:
        for batch in await client.batches(limit):
            counts = batch.request_counts
            print(
                f"{batch.id}  {batch.status:<11}  {counts.completed + counts.failed}/{counts.total}"
                f"  {counts.failed} failed  {batch.model or '-'}"
            )
        return 0

    raise typer.Exit(_with_client(api, key, data, work))


def _with_client(
    api: str | None, key: str | None, data: Path, work: "Callable[[BatchClient], Awaitable[int]]"
) -> int:
    """Run a command and return its exit code: 1 with a message where it went wrong."""
    from cli.batch_client import BatchClient
    from cli.client import ClientError

    async def main() -> int:
        async with BatchClient(*find_target(api, key, data)) as client:
            return await work(client)

    try:
        return run_until_interrupted(main())
    except (ClientError, NoTargetError) as error:
        typer.echo(f"headrace batch: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        typer.echo(
            "headrace batch: interrupted; what was submitted goes on, and so does the same command", err=True
        )
        return _INTERRUPTED


async def _only_model(client: "BatchClient") -> str:
    from cli.client import ClientError

    names = await client.models()
    if len(names) != 1:
        raise ClientError(f"--model is needed; there are {', '.join(names) or 'none'}")
    return names[0]


def _show(batch: "BatchAnswer") -> None:
    counts, usage = batch.request_counts, batch.usage
    print(f"{batch.id}  {batch.status}")
    print(f"requests  {counts.completed} completed, {counts.failed} failed, of {counts.total}")
    print(f"tokens    {usage.input_tokens} in, {usage.output_tokens} out; {batch.cost_usd_micros} micro-USD")
    for kind, file_id in (("output", batch.output_file_id), ("errors", batch.error_file_id)):
        if file_id:
            print(f"{kind}    {file_id}")
    for problem in (batch.errors.data if batch.errors else [])[:5]:
        print(f"line {problem.line}: {problem.message} ({problem.code})")
