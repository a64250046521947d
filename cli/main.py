"""The `headrace` command: one function per subcommand, each importing what it needs when it is called."""

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    name="headrace",
    help="Asynchronous inference: message queues around vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # they could show secrets
)


@app.command()
def up(
    data: Annotated[Path, typer.Option(help="Folder for everything the stack keeps.")] = Path(".headrace"),
    api_port: Annotated[int | None, typer.Option(help="Default: 8000, or a free one.")] = None,
    flower_port: Annotated[int | None, typer.Option(help="Default: 5555, or a free one.")] = None,
    engine: Annotated[
        Literal["vllm", "deterministic"], typer.Option(help="vllm, or deterministic: no model, for tests.")
    ] = "vllm",
) -> None:
    """Run the whole platform on this machine until Ctrl-C: stores, API, control, worker, Flower."""
    import cli.up

    raise typer.Exit(cli.up.up(data, api_port=api_port, flower_port=flower_port, engine=engine))


@app.command()
def flower(
    port: Annotated[int, typer.Option(help="On 127.0.0.1.")] = 5555,
    password_file: Annotated[
        Path | None,
        typer.Option(help="Holds the password of user headrace.", envvar="HEADRACE_FLOWER_PASSWORD_FILE"),
    ] = None,
) -> None:
    """Watch Celery's workers and tasks in the browser."""
    import cli.flower

    cli.flower.run(port, password_file)


def main() -> None:
    """The console script."""
    app()
