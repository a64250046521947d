"""`headrace admin model`."""

from pathlib import Path
from typing import Annotated

import typer

from cli.admin.connect import connected, show

NAME = "model"
app = typer.Typer(help="Registered models, whoever may use them.", no_args_is_help=True)
_COLUMNS = (
    *("id", "path", "version", "max_model_len", "default_max_tokens", "short_tokens", "medium_tokens"),
    *("sync_start_s", "sync_finish_s", "sync_stream_s"),
)


@app.command("list")
def list_(context: typer.Context) -> None:
    """List registered models."""
    with connected(context) as admin:
        show(context, admin.list("/models"), _COLUMNS)


@app.command()
def put(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What callers send as `model`.")],
    path: Annotated[Path, typer.Option(help="Folder of the model, as API and workers see it.")],
    version: Annotated[
        str | None, typer.Option(help="Of what is there: tasks keep it, and prices may be of one.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=16, help="Tokens of prompt and output together. Default: the model's.")
    ] = None,
    default_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="For requests that ask for none. Default: fill the context.")
    ] = None,
    short: Annotated[int, typer.Option(min=1, help="Upper bound of the short class, tokens.")] = 512,
    medium: Annotated[int, typer.Option(min=2, help="Upper bound of the medium class, tokens.")] = 2048,
    tool_parser: Annotated[
        str | None,
        typer.Option(help="vLLM's parser of the model's tool calls. Default: no tools are served."),
    ] = None,
    reasoning_parser: Annotated[
        str | None, typer.Option(help="vLLM's parser of the model's reasoning. Default: all is answer.")
    ] = None,
    probe_prompt: Annotated[
        str | None, typer.Option(help="What workers ask now and then to see that the model is well.")
    ] = None,
    probe_word: Annotated[
        list[str] | None, typer.Option(help="In the answer to it, in any case; may be given again.")
    ] = None,
    sync_start: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Seconds for a synchronous call to start in. Default: the deployment's."
        ),
    ] = None,
    sync_finish: Annotated[
        float | None, typer.Option(min=0.001, help="And, once started, to answer in. Default: likewise.")
    ] = None,
    sync_stream: Annotated[
        float | None, typer.Option(min=0.001, help="And to stream its answer in. Default: likewise.")
    ] = None,
) -> None:
    """Register a model, or change its registration."""
    body = {
        "path": str(path),
        "version": version,
        "max_model_len": max_model_len,
        "default_max_tokens": default_max_tokens,
        "short_tokens": short,
        "medium_tokens": medium,
        "tool_parser": tool_parser,
        "reasoning_parser": reasoning_parser,
        "probe_prompt": probe_prompt,
        "probe_words": probe_word or [],
        "sync_start_s": sync_start,
        "sync_finish_s": sync_finish,
        "sync_stream_s": sync_stream,
    }
    with connected(context) as admin:
        show(context, [admin.call("PUT", f"/models/{name}", body)], _COLUMNS)


@app.command()
def delete(context: typer.Context, name: str) -> None:
    """Take a model out of service, with its grants; refused while tasks for it are queued or running."""
    with connected(context) as admin:
        show(context, [admin.call("DELETE", f"/models/{name}")], ("id", "deleted"))
