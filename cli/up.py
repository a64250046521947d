"""`headrace up`: the local stack in the foreground until Ctrl-C."""

import asyncio
import shlex
import signal
import sys
from pathlib import Path

from rich.console import Console

from cli.stack.folder import StackBusyError
from cli.stack.local import EngineKind, LocalStack, StackOptions
from cli.stack.process import StackError
from cli.stack.progress import PlainProgress, Progress, TerminalProgress


def up(
    data: Path, *, api_port: int | None = None, flower_port: int | None = None, engine: EngineKind = "vllm"
) -> int:
    """Run the stack until SIGINT, SIGTERM or SIGHUP and return the exit code.

    0: stopped as asked; 1: a part didn't come up; 2: another stack runs on the folder.
    """
    console = Console()
    progress = TerminalProgress(console) if console.is_terminal else PlainProgress()
    options = StackOptions(api_port=api_port, flower_port=flower_port, engine=engine)
    try:
        asyncio.run(_run(LocalStack(data, options, progress), progress))
    except StackError as error:
        progress.close()
        print(f"headrace: {error}", file=sys.stderr)
        return 2 if isinstance(error, StackBusyError) else 1
    finally:
        progress.close()
    return 0


async def _run(stack: LocalStack, progress: Progress) -> None:
    asked = asyncio.Event()

    def ask() -> None:
        if asked.is_set():
            stack.supervisor.hurry()
        asked.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ask)
    if stack.options.engine == "deterministic":
        progress.note("the deterministic engine makes up its text: for tests, no model runs")
    stopping = asyncio.create_task(asked.wait())
    starting = asyncio.create_task(stack.start())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
    if starting.cancelled():
        return
    starting.result()
    try:
        progress.close()
        print(_banner(stack), flush=True)
        await stopping
    finally:
        print("headrace: stopping (again: at once)", flush=True)
        await stack.stop()
    print("headrace: stopped", flush=True)


def _banner(stack: LocalStack) -> str:
    run = stack.run
    key = shlex.quote(run.api_key_file)
    body = (
        f'{{"model": "{stack.model}", "temperature": 0, "max_tokens": 32, '
        '"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    )
    return "\n".join(
        (
            "",
            f"API      {run.api_url}/v1 (model {stack.model}), key in {run.api_key_file}",
            f"Flower   {run.flower_url} as {run.flower_user}, password in {run.flower_password_file}",
            f"Logs     {stack.folder.logs}",
            "",
            f"curl -s {run.api_url}/v1/chat/completions -H 'Content-Type: application/json' \\",
            f'  -H "Authorization: Bearer $(cat {key})" \\',
            f"  -d '{body}'",
            "",
            "Ctrl-C stops everything.",
        )
    )
