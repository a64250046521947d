"""The `headrace` command: one function per subcommand, each importing what it needs when it is called."""

from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.admin import app as admin_app
from cli.admin.connect import KeyFile
from cli.batch_commands import app as batch_app
from cli.queue import queue
from cli.target import LOCAL, Api, Data
from cli.tasks import cancel, result, submit, tail
from cli.usage import usage

if TYPE_CHECKING:
    from runtime.settings import Settings

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # they could show secrets
)
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Serve /metrics. Default: HEADRACE_METRICS_PORT, else not."),
]
model_app = typer.Typer(help="Models and who may use them.", no_args_is_help=True)
app.add_typer(model_app, name="model")
app.add_typer(admin_app, name="admin")
app.add_typer(batch_app, name="batch")


def _show_version(asked: bool) -> None:
    if asked:
        print(f"headrace {version_of('headrace')}")
        raise typer.Exit


@app.callback()
def headrace(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Asynchronous inference: message queues around vLLM."""


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
def demo(
    data: Annotated[Path, typer.Option(help="Folder of the stack; one that runs there is used.")] = Path(
        ".headrace"
    ),
) -> None:
    """Start the platform, stream an answer, poll a task, run a batch, show times and cost, stop it."""
    import cli.demo

    raise typer.Exit(cli.demo.demo(data))


@app.command()
def flower(
    port: Annotated[int, typer.Option(min=0, max=65535)] = 5555,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback only inside a container.")
    ] = "127.0.0.1",
    password_file: Annotated[
        Path | None,
        typer.Option(help="Holds the password of user headrace.", envvar="HEADRACE_FLOWER_PASSWORD_FILE"),
    ] = None,
    writable: Annotated[
        bool,
        typer.Option(
            "--writable", help="Let it stop workers and revoke tasks.", envvar="HEADRACE_FLOWER_WRITABLE"
        ),
    ] = False,
) -> None:
    """Watch Celery's workers and tasks in the browser: read-only unless told otherwise."""
    import cli.flower

    cli.flower.run(port, password_file, host=host, writable=writable)


@app.command()
def migrate() -> None:
    """Bring the database to the newest schema."""
    from migrations import upgrade
    from runtime.settings import settings

    upgrade(settings().database_url.get_secret_value())


@app.command()
def reconcile(
    repair: Annotated[
        bool, typer.Option("--repair", help="First release holds of ended tasks and count budgets anew.")
    ] = False,
) -> None:
    """Recompute charges, budgets and engine time from tasks and prices; exit code 1 where they differ."""
    import cli.reconcile

    raise typer.Exit(cli.reconcile.run(repair=repair))


@app.command()
def bootstrap(
    key_file: Annotated[
        Path | None, typer.Option(help="Where the tenant's API key goes; readable by its owner only.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Created when missing.")] = "default",
    admin_key_file: Annotated[
        Path | None, typer.Option(help="Where an administrator's key goes; readable by its owner only.")
    ] = None,
) -> None:
    """Create the first tenant and the first keys; does nothing where a file holds a key in force."""
    if key_file is None and admin_key_file is None:
        raise typer.BadParameter("give --key-file, --admin-key-file or both")
    import cli.setup

    cli.setup.bootstrap(key_file, tenant, admin_key_file)


@model_app.command("add")
def model_add(
    name: Annotated[str, typer.Argument(help="What callers send as `model`.")],
    path: Annotated[Path, typer.Option(help="Folder of weights, tokenizer and chat template.")],
    max_model_len: Annotated[
        int | None, typer.Option(min=16, help="Tokens of prompt and output together. Default: the model's.")
    ] = None,
    default_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="For requests that ask for none. Default: fill the context.")
    ] = None,
    short: Annotated[int, typer.Option(min=1, help="Upper bound of the short class, tokens.")] = 512,
    medium: Annotated[int, typer.Option(min=2, help="Upper bound of the medium class, tokens.")] = 2048,
    prompt_price: Annotated[float, typer.Option(min=0, help="USD per million prompt tokens.")] = 0.0,
    cached_price: Annotated[
        float | None, typer.Option(min=0, help="USD per million cached prompt tokens. Default: prompt price.")
    ] = None,
    output_price: Annotated[float, typer.Option(min=0, help="USD per million output tokens.")] = 0.0,
    tenant: Annotated[str, typer.Option(help="Granted the model; created when missing.")] = "default",
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
    version: Annotated[
        str | None, typer.Option(help="Of what is there: tasks keep it, and prices may be of one.")
    ] = None,
) -> None:
    """Register a model, or change its registration, and grant it to a tenant."""
    import cli.setup

    cli.setup.add_model(
        name,
        path,
        max_model_len=max_model_len,
        default_max_tokens=default_max_tokens,
        short=short,
        medium=medium,
        prices=(prompt_price, prompt_price if cached_price is None else cached_price, output_price),
        tenant=tenant,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        probe_prompt=probe_prompt,
        probe_words=probe_word or (),
        version=version,
    )


@app.command()
def api(
    host: Annotated[str | None, typer.Option(help="Default: HEADRACE_API_HOST, else 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Default: HEADRACE_API_PORT, else 8000.")] = None,
) -> None:
    """Serve HTTP."""
    from api.app import serve

    serve(_settings(api_host=host, api_port=port))


@app.command()
def control(metrics_port: MetricsPort = None) -> None:
    """Run the control loops: dispatch, rescue, recount, expiry, retention. Any number may run; one leads."""
    from control.app import control as run

    run(_settings(metrics_port=metrics_port))


@app.command()
def worker(
    model: Annotated[str | None, typer.Option(help="The model to serve. Default: HEADRACE_MODEL.")] = None,
    lanes: Annotated[
        str | None, typer.Option(help="Length classes to take, such as short,medium. Default: all.")
    ] = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Hold one engine and run tasks on it."""
    from workers.app import work

    raise typer.Exit(work(_settings(model=model, lanes=lanes, metrics_port=metrics_port)))


for command in (submit, tail, result, cancel, usage, queue):
    app.command()(command)


@app.command()
def ping(
    worker: Annotated[
        str | None, typer.Option(help="Name of a worker: is its row fresh, does it serve?")
    ] = None,
    api: Annotated[str | None, typer.Option(help="URL of an API process: is it ready?")] = None,
    control: Annotated[bool, typer.Option("--control", help="Does any control process lead?")] = False,
    within: Annotated[float, typer.Option(min=0.1, help="Seconds since the worker was last seen.")] = 10.0,
) -> None:
    """Ask one process whether it serves: exit code 0 or 1. For health checks."""
    if (worker is not None) + (api is not None) + control != 1:
        raise typer.BadParameter("give one of --worker, --api and --control")
    import cli.ping

    if worker is not None:
        raise typer.Exit(cli.ping.worker(worker, within))
    raise typer.Exit(cli.ping.control() if api is None else cli.ping.api(api))


ApiUrl = Annotated[
    str | None, typer.Option(help="URL of the API. Default: the local stack's.", envvar="HEADRACE_API_URL")
]
AdminKey = Annotated[
    Path | None,
    typer.Option(
        help="Holds an administrator's key. Default: the local stack's.", envvar="HEADRACE_ADMIN_KEY_FILE"
    ),
]
DataOfStack = Annotated[Path, typer.Option(help="Folder of the local stack.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print what the API says, as JSON.")]


@app.command()
def top(
    api: ApiUrl = None,
    key_file: AdminKey = None,
    data: DataOfStack = Path(".headrace"),
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    json: AsJson = False,
) -> None:
    """Watch lanes, workers, tokens, times and cost until Ctrl-C."""
    import cli.top
    from cli.admin.connect import Where

    raise typer.Exit(cli.top.top(Where(api, key_file, data, json), once=once, every_s=every))


@app.command()
def workers(
    api: ApiUrl = None,
    key_file: AdminKey = None,
    data: DataOfStack = Path(".headrace"),
    events: Annotated[int, typer.Option(min=0, help="Changes of health to show.")] = 10,
    json: AsJson = False,
) -> None:
    """Show which workers serve what, how well they are, and how that changed."""
    import cli.top
    from cli.admin.connect import Where

    raise typer.Exit(cli.top.workers(Where(api, key_file, data, json), events=events))


@app.command()
def bench(
    name: Annotated[
        str, typer.Argument(help="raw, recovery …, all in docs/benchmarks.md; or report: its table.")
    ],
    json: Annotated[Path | None, typer.Option(help="The result. Default: bench/results/NAME.json.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and less certain.")] = False,
    engine: Annotated[
        Literal["vllm", "deterministic"],
        typer.Option(help="deterministic: to try a benchmark, no model runs."),
    ] = "vllm",
    data: Annotated[
        Path | None, typer.Option(help="Folder of real inputs, for those that take them.")
    ] = None,
) -> None:
    """Measure this platform against what it is built on, side by side on this machine."""
    import bench.main

    raise typer.Exit(bench.main.run(name, json=json, quick=quick, engine=engine, data=data))


@app.command()
def apply(
    file: Annotated[
        Path, typer.Option("--file", "-f", help="What the deployment is to be; see docs/tenants.md.")
    ],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "--diff", help="Only show what would change: exit code 2 if anything."),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Take away what tenants in the file have and it doesn't name."),
    ] = False,
    keys_dir: Annotated[
        Path, typer.Option(help="Where keys that are made go, one a file, readable by their owner only.")
    ] = Path("keys"),
    api: Api = None,
    key_file: KeyFile = None,
    data: Data = LOCAL,
) -> None:
    """Make tenants, keys, grants and models what a file says; show what differs."""
    import cli.apply
    from cli.admin.connect import Where

    where = Where(api, key_file, data)
    raise typer.Exit(cli.apply.apply(file, where, dry_run=dry_run, prune=prune, keys_dir=keys_dir))


def _settings(**given: Any) -> "Settings":
    """The settings, with what the command line gave in place of the environment's."""
    from runtime.settings import Settings, settings

    options = {name: value for name, value in given.items() if value is not None}
    return Settings.model_validate(settings().model_dump() | options)


def main() -> None:
    """The console script."""
    app()
